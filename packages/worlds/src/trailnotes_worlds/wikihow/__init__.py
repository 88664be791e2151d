"""WikiHow: a simulated app of articles, judged by the task files of Mobile-Env. See ``docs/envs/wikihow.md``."""
