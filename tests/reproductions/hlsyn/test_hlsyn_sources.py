"""C that other kernels may use: loops of any form have trip counts, names have values, pointers have elements."""

from __future__ import annotations

import pytest

from experiments.reproductions.hlsyn.cycles.cycles import facts
from experiments.reproductions.hlsyn.source import parse_kernel
from experiments.reproductions.hlsyn.source.loop_tree import Kernel, Loop

PRAGMA = "#pragma ACCEL PARALLEL FACTOR=auto{__PARA__L0}\n"


def loop(header: str, body: str = "a[i] = b[i] * 2.0;", before: str = "", top: str = "") -> Kernel:
    """A kernel of one loop."""
    head = f"{top}\nvoid f(double a[64], double b[64], int n) {{ int i, j; {before}\n"
    return parse_kernel(f"{head}{PRAGMA}for ({header}) {{ {body} }} }}")


def trips(kernel: Kernel) -> list[tuple[float, bool]]:
    """Trip count of each loop, and whether it is the same each time."""
    return [(each.trip_count, each.is_exact) for each in kernel.loops()]


@pytest.mark.parametrize(
    ("header", "count"),
    [
        ("i = 0; i <= 63; i++", 64), ("i = 0; i < 64; i = i + 2", 32), ("i = 63; i >= 0; i--", 64),
        ("i = 64; i > 0; i -= 4", 16), ("i = 0; 64 > i; i++", 64), ("i = 0; i != 64; ++i", 64),
        ("i = 1; i < 64; i *= 2", 6), ("i = 64; i > 0; i >>= 1", 7), ("i = 0, j = 0; i < 64; i++, j += 2", 64),
        ("i = 0; i < 64; i += 4 * 2", 8), ("i = 0; i < (1 << 6); i++", 64), ("i = 0; i + 1 < 64; i = 1 + i", 63),
        ("i = 63; i; i--", 63), ("i = 64; i-- > 0;", 64), ("i = 8; --i;", 7), ("size_t i = 0; (i < 64u); i++", 64),
        ("i = 0; 2 * i < 64; i++", 32), ("i = 0; i < 64; i += sizeof(int)", 16),
    ],
)  # fmt: skip
def test_headers_of_any_form(header: str, count: int) -> None:
    assert trips(loop(header)) == [(count, True)]


@pytest.mark.parametrize("header", ["i = 0; i < n; i++", "i = 0; b[i] > 0; i++", "i = 0;; i++", "; i < 64; i++"])
def test_lengths_that_data_decide_are_unknown(header: str) -> None:
    assert trips(loop(header)) == [(1, False)]


def test_a_loop_that_may_end_early_is_not_exact() -> None:
    assert trips(loop("i = 0; i < 64 && b[i] > 0; i++")) == [(64, False)]
    assert trips(loop("i = 0; i < 64; i++", "if (b[i] > 3) break; a[i] = 1;")) == [(64, False)]
    inner = "for (j = 0; j < 8; j++) { if (b[j] > 3) break; } "
    inner += "switch (n) { case 1: a[i] = 2; break; default: a[i] = 1; }"
    assert trips(loop("i = 0; i < 64; i++", inner)) == [(64, True), (8, False)]


@pytest.mark.parametrize(
    ("start", "inner"),
    [
        ("j = 0;", "while (j < 8) { a[i] += b[j]; j++; }"), ("j = 8;", "while (j > 0) { a[i] += b[j]; j -= 1; }"),
        ("j = 8;", "while (j--) a[i] += b[j];"), ("j = 0;", "do { a[i] += b[j]; j = j + 1; } while (j < 8);"),
        ("", "for (j = i; j < (i + 8 < 64 ? i + 8 : i + 8); j++) a[i] += b[j];"),
    ],
)  # fmt: skip
def test_counted_loops_that_are_no_for(start: str, inner: str) -> None:
    _, kernel = trips(loop("i = 0; i < 64; i++", f"{start} {inner} a[i] = 0;"))
    assert kernel[0] == 8


@pytest.mark.parametrize(
    "top",
    [
        "#define N (8 * M) /* of both */\n#define M 8", "#define N 0x40", "#define N 64UL", "enum { A, N = 64 };",
        "static const int N = 8 * 8;", "#ifdef SMALL\n#define N 4\n#elif 0\n#define N 5\n#else\n#define N 64\n#endif",
        "#define N SIZE(8, 8)\n#define SIZE(x, y) ((x) * \\\n (y))",
    ],
)  # fmt: skip
def test_bounds_have_names(top: str) -> None:
    assert trips(loop("i = 0; i < N; i++", top=top)) == [(64, True)]


def test_types_have_names() -> None:
    kernel = parse_kernel("typedef float real;\nvoid f(real a[4][4], real *b) { a[0][1] = (real)b[0]; }")
    assert kernel.bytes_of == {"a": 4, "b": 4} and kernel.arrays["a"] == 16


@pytest.mark.parametrize(
    ("header", "body", "distances"),
    [
        ("i = 62; i >= 0; i--", "a[i] = a[i + 1] * b[i];", [1.0]),
        ("i = 0; i < 63; i++", "a[i] = a[i + 1] * b[i];", []),
        ("i = 2; i < 64; i += 2", "a[i] = a[i - 2] * b[i];", [1.0]),
        ("i = 2; i < 64; i += 2", "a[i] = a[i - 1] * b[i];", []),
        ("i = 1, j = 2; i < 31; i++, j += 2", "a[j] = a[j - 2] * b[i];", [1.0]),
    ],
)  # fmt: skip
def test_steps_decide_how_far_apart_iterations_are(header: str, body: str, distances: list[float]) -> None:
    fact = next(iter(facts(loop(header, body)).values()))
    assert [each.distance for each in fact.recurrences if not each.is_scalar] == distances


def elements(kernel: Kernel) -> set[tuple[str, tuple]]:
    """Arrays and subscripts of all that innermost loops touch."""
    inner = [each for each in kernel.loops() if not any(isinstance(item, Loop) for item in each.body)]
    accesses = [
        access for each in inner for item in each.body if not isinstance(item, Loop)
        for access in (item.target, *(read for read, _ in item.reads))
    ]  # fmt: skip

    def plain(affine: dict[str, int] | None) -> tuple:
        return tuple(sorted((name.split("#")[0], each) for name, each in (affine or {"?": 1}).items() if each))

    return {(access.name, tuple(plain(each) for each in access.subscripts)) for access in accesses}


@pytest.mark.parametrize(
    "call",
    ["g(a + 8 * i, b + i * 8);", "g(&a[8 * i], &b[i * 8]);", "double *p = a + 8 * i; g(p, b + 8 * i);"],
)  # fmt: skip
def test_pointers_into_arrays_are_followed(call: str) -> None:
    top = "void g(double *x, double *y) { for (int k = 0; k < 8; k++) { x[k] = *(y + k) * 2; } }"
    place = ((("i", 8), ("k", 1)),)
    assert elements(loop("i = 0; i < 8; i++", call, top=top)) == {("a", place), ("b", place)}


def test_rows_of_arrays_are_followed() -> None:
    kernel = parse_kernel(
        "void g(double *x) { for (int k = 0; k < 8; k++) { x[k] = 0; } }\n"
        "void f(double a[4][8]) { for (int i = 0; i < 4; i++) { g(a[i]); } }"
    )
    assert elements(kernel) == {("a", ((("i", 1),), (("k", 1),)))}


def test_pointers_have_the_elements_that_subscripts_reach() -> None:
    body = "for (int i = 0; i < 16; i++) { a[2 * i + 1] = b[i][3]; }"
    kernel = parse_kernel(f"void f(double *a, double (*b)[8]) {{ {body} }}")
    assert kernel.arrays == {"a": 32, "b": 128} and kernel.shapes["b"] == (16, 8)


def test_the_kernel_is_the_function_that_is_marked() -> None:
    marked = "#pragma ACCEL kernel\nvoid f(double a[8]) { for (int i = 0; i < 8; i++) a[i] = g(a[i]); }\n"
    kernel = parse_kernel(marked + "double g(double x) { return x * x; }\nint main(void) { return 0; }")
    assert kernel.name == "f" and next(iter(kernel.loops())).body[0].operations["fmul"] == 1  # type: ignore[union-attr]
    assert parse_kernel('extern "C" {\nvoid f(double a[8]) { a[0] = 1; }\n}\nint main(void) { return 0; }').name == "f"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("void f(double a[4]) { a[0] = " + "(" * 150 + "1" + ")" * 150 + "; }", "nested too deeply"),
        ("#define A B B\n#define B C C\n" + "".join(f"#define {x} {y} {y} {y} {y} {y} {y} {y} {y}\n" for x, y in zip(
            "CDEFGHIJ", "DEFGHIJK", strict=True)) + "void f(int a[1]) { A; }", "expand to more than"),
        ("void f(double a[4]) { for (int i = 0; i < 4 4; i++) a[i] = 0; }", "want the end of a condition"),
    ],
)  # fmt: skip
def test_hostile_sources_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        parse_kernel(text)
    assert "\n" not in str(refusal.value)
