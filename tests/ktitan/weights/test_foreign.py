import pytest

import ktitan
from ktitan.errors import FormatError
from ktitan.weights.foreign import refused


class Panic(BaseException):
    """As libraries in Rust raise for a panic, by name."""


Panic.__name__ = "PanicException"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("k"), "KeyError: 'k'"),
        (Exception("rust\n says"), "rust says"),
        (RecursionError("deep"), "RecursionError"),
        (ZeroDivisionError("0"), "ZeroDivisionError: 0"),
        (Panic("p"), "PanicException: p"),
        (ValueError("x" * 9999), "xxx..."),
    ],
)
def test_what_libraries_raise_for_bad_input_becomes_an_error(error, words):
    with pytest.raises(FormatError) as caught, refused(FormatError, "no good", "w", "r"):
        raise error
    assert words in caught.value.message and len(caught.value.message) < 500
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), ktitan.PlanError("m", "w", "r")])
def test_other_errors_pass(error):
    with pytest.raises(type(error)) as caught, refused(FormatError, "no good", "w", "r"):
        raise error
    assert caught.value is error
