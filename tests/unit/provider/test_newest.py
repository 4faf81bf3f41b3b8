"""The mapping that forgets."""

from elastic_training.concurrency.newest import Newest


def test_what_was_set_last_is_kept() -> None:
    newest = Newest[str, int](2)
    newest["a"], newest["b"] = 1, 2
    newest["a"] = 3
    newest.update({"c": 4})
    assert dict(newest) == {"a": 3, "c": 4}
