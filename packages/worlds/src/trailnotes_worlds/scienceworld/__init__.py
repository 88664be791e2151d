"""ScienceWorld: thirty families of school-science tasks in a simulated house, each simulator a Java process."""
