"""The environment keeps the contract that training relies on. Run it by ``python test_own_env.py``, or by pytest."""

from own_env import Lock

from trailnotes.envs import check_env


def test_the_environment_keeps_the_contract() -> None:
    assert check_env(Lock) == ()  # an EnvError names the fix; what could not be checked is returned


def test_the_right_number_opens_the_lock() -> None:
    lock = Lock(settings=4)
    task = Lock.tasks("train")[0]
    for guess in range(4):
        lock.reset(task)
        if lock.step(str(guess)).success:
            break
    else:
        raise AssertionError("no number opens it")


if __name__ == "__main__":
    test_the_environment_keeps_the_contract()
    test_the_right_number_opens_the_lock()
    print("The tests pass.")
