"""Mutants: one line of the product is changed in a copy of the tree, and the nearest quick tests have to fail.

    python -m experiments.bench mutants --mutants 100 --json experiments/results/mutants.json

Mutants are drawn from the syntax trees of `FILES`. The nearest tests are those that import the changed module, by the
number of imports between. A mutant is killed by the first test that fails with it and passes without it, or if the
tests take more than `LIMIT_S`. A run goes on with a file of the same seed, and tries its survivors again.
"""

from __future__ import annotations

import ast
import contextlib
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from gst.util.progress import Progress, no_progress
from gst.util.untrusted import read_object
from gst.util.writing import write_json

ROOT = Path(__file__).parents[2]
FILES = (
    "gst/method/*.py", "embedding_cache/*.py", "gst/graphs/segments.py", "gst/placement/objectives.py",
    "gst/placement/fitted.py", "gst/placement/loop.py", "gst/placement/search/*.py",
    "gst/lowering/*.py", "gst/simulation/*.py", "gst/cost/*.py", "partitioners/*.py",
)  # fmt: skip
EQUIVALENT = {
    "if awaited < 0:": "step 0 is never waited for: it is taken at once if it records an event",
    "return numba.njit(cache=True, nogil=True)(kernel)": "a cache changes times alone",
    "for part in chunks(len(features), max(1, CONFIG_BYTES // max(1, features[:1].nbytes))):": "for memory alone",
    "return any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True))": "as long",
    'self._device = torch.device("cpu") if dist.get_backend(group) == "gloo" else shard.device': "alike on cores",
    "CONFIG_BYTES = 1 << 24  # of configuration features rearranged at once, a single configuration being the least": (
        "for memory alone"
    ),
    'ages = inputs["fresh"].new_full(shape, -1) if rows is None else rows.ages()': "without rows nothing reads ages",
    "for graph, configurable, chosen in zip(catalogue.graphs, of_graph, configs.clamp(min=0).numpy(), strict=True):": (
        "as long"
    ),
    "labels = np.arange(csr.num_nodes, dtype=np.int32 if csr.num_nodes < 2**31 else np.int64)": "for memory alone",
    "if words == 1:  # the processor looks far enough ahead by itself": "for speed alone",
    "for low, first, end in zip(range(0, num_nodes, block_nodes), ends - sizes, ends, strict=True):": "as long",
    "for columns, values in zip(self._places.links[:, here, there], (latency, -took), strict=True):": "as long",
}  # lines of survivors that change no result here, by inspection, with the reason
LIMIT_S, ENDED = 400, "the process ended or took too long"  # seconds of processor time, for the tests of one mutant
NEAREST = 12  # files of tests at most
TOPS = ("embedding_cache", "gst", "partitioners", "tests", "experiments")
SLOW_TESTS = ("cli", "docs", "experiments", "fuzz", "reproductions")
LIBRARIES = ("pytest", "numba", "hypothesis", "beartype", "scipy.optimize", "torch._dynamo", "torch.export")
PAIRS = ((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn),
         (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.BitAnd, ast.BitOr), (ast.And, ast.Or),
         ("min", "max"), ("amin", "amax"), ("minimum", "maximum"), ("argmin", "argmax"), ("any", "all"))  # fmt: skip
OTHER: dict[Any, Any] = dict(PAIRS) | {b: a for a, b in PAIRS} | {ast.FloorDiv: ast.Mult}
SILENT = ("__repr__", "__str__", "notice", "warn", "progress", "lazy_names")  # their texts are not tested
HELP = {"mutants": "drawn from all files"}


def run(
    mutants: int = 100,
    seed: int = 0,
    progress: Progress = no_progress,
    json: Path = Path("experiments/results/mutants.json"),
) -> dict[str, Any]:
    """Try the mutants that `json` lacks and its survivors, save after each, and return them with the share killed."""
    known = dict(read_object(json)) if json.exists() else {}
    is_same = (known.get("seed"), len(known.get("mutants", ()))) == (seed, mutants)
    result: dict[str, Any] = known if is_same else {"seed": seed, "mutants": drawn_mutants(mutants, seed)}
    result["command"] = f"python -m experiments.bench mutants --mutants {mutants} --seed {seed}"
    tree, compiled = ROOT / "runs" / "mutants_tree", ROOT / "runs" / "mutants_numba"
    ignored = shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, tree, ignore=ignored, dirs_exist_ok=True)  # with its times: compiled kernels stay valid
    waiting = [each for each in result["mutants"] if each.get("outcome", "survived") == "survived"]
    sound, unsound = set[tuple[str, ...]](), list[str]()
    for number, mutant in enumerate(waiting):
        progress("mutants", number, len(waiting))
        began, tests = time.monotonic(), nearest_tests(mutant["file"])
        while failed := killed_by(mutant, tree, compiled, tests, unsound):
            proof = tuple(tests) if failed == ENDED else (failed,)
            if proof in sound or not failing_test(tree, compiled, proof, unsound):
                sound.add(proof)
                break
            if failed == ENDED:
                raise ValueError(f"{', '.join(tests)} do not end in {LIMIT_S} s without a mutant, either")
            unsound.append(failed)  # it fails without the mutant, too
        outcome = "killed" if failed else "equivalent" if mutant["before"] in EQUIVALENT else "survived"
        mutant |= {"outcome": outcome, "test": failed, "seconds": round(time.monotonic() - began, 1)}
        outcomes = [each.get("outcome") for each in result["mutants"]]
        result["killed"] = outcomes.count("killed") / max(outcomes.count("killed") + outcomes.count("survived"), 1)
        write_json(json, result)
    return result


def drawn_mutants(count: int, seed: int) -> list[dict[str, Any]]:
    """Draw mutants of different lines: file, line, and the line before and after."""
    paths = sorted({path for pattern in FILES for path in ROOT.glob(pattern)})
    every = [each for path in paths for each in mutants_of(path)]
    random.Random(seed).shuffle(every)
    lines = {(each["file"], each["line"]): each for each in reversed(every)}
    return [lines[key] for key in dict.fromkeys((each["file"], each["line"]) for each in every)][:count]


def mutants_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the mutants of a file whose changed expression or statement is on one line."""
    text, relative = path.read_text(), str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
    for node, changed in changes(ast.parse(text)):
        if node.lineno == node.end_lineno:
            line = text.splitlines()[node.lineno - 1].encode()
            after = (line[: node.col_offset] + changed.encode() + line[node.end_col_offset :]).decode()
            yield {"file": relative, "line": node.lineno, "before": line.decode().strip(), "after": after.strip()}


def changes(node: ast.AST) -> Iterator[tuple[Any, str]]:
    """Yield nodes below `node` with the source that replaces them; texts, annotations and checks are left alone."""
    match node:
        case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom() | ast.AnnAssign(value=None):
            return
        case ast.FunctionDef(name=name) | ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in SILENT:
            return
        case ast.Expr(value=ast.Call(func=ast.Name(id=name))) if name in SILENT:
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Expr(value=ast.Constant()):
            return
        case ast.Compare(left=left, ops=[op, *ops], comparators=others) if type(op) in OTHER:
            yield node, f"({ast.unparse(ast.Compare(left, [OTHER[type(op)](), *ops], others))})"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OTHER and not _is_text(left, right):
            yield node, f"({ast.unparse(ast.BinOp(left, OTHER[type(op)](), right))})"
        case ast.BoolOp(op=op, values=values):
            yield node, f"({ast.unparse(ast.BoolOp(OTHER[type(op)](), values))})"
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Constant(value=0 | 1 as value) if not isinstance(value, float):
            yield node, repr(not value if isinstance(value, bool) else 1 - value)
        case ast.Break() | ast.Continue():
            yield node, "continue" if isinstance(node, ast.Break) else "break"
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
        case ast.Call(func=function, args=args, keywords=keywords):
            for dropped in (each for each in keywords if each.arg != "device"):  # there may be only one device
                yield node, ast.unparse(ast.Call(function, args, [each for each in keywords if each is not dropped]))
        case ast.Attribute(attr=name) | ast.Name(id=name, ctx=ast.Load()) if name in OTHER:
            yield node, f"{ast.unparse(node).removesuffix(name)}{OTHER[name]}"
    for name, child in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for each in child if isinstance(child, list) else [child]:
                yield from changes(each) if isinstance(each, ast.AST) else ()


def _is_text(*nodes: ast.AST) -> bool:
    return any(isinstance(each, ast.JoinedStr | ast.Constant) and not ast.unparse(each)[0].isdigit() for each in nodes)


def killed_by(
    mutant: dict[str, Any], tree: Path, compiled: Path, tests: Sequence[str], unsound: Sequence[str] = ()
) -> str:
    """Return the test that a mutant fails, empty if it passes all; the kernels of its file are compiled anew."""
    path = tree / mutant["file"]
    original = path.read_text()
    lines = original.splitlines(keepends=True)
    alike = [number for number, line in enumerate(lines) if line.strip() == mutant["before"]]
    if not alike:
        raise ValueError(f"{mutant['file']} has no line {mutant['before']!r}: name a new file, for mutants of today")
    at = min(alike, key=lambda number: abs(number + 1 - mutant["line"]))
    lines[at] = lines[at].replace(mutant["before"], mutant["after"])
    failed = ""
    for text in ("".join(lines), original):
        path.write_text(text)
        shutil.rmtree(tree / ".pytest_cache", ignore_errors=True)  # what tests of a mutant measured
        for code in compiled.rglob(f"{'*' if path.parent.name == 'embedding_cache' else path.stem}.*"):
            code.unlink()  # of kernels; that of other folders is named by the content of what it calls
        failed = failing_test(tree, compiled, tests, unsound) if text != original else failed
    return failed


def failing_test(tree: Path, compiled: Path, tests: Sequence[str], unsound: Sequence[str] = ()) -> str:
    """Run the quick tests of files and return the first that fails, empty if all pass."""
    for name in LIBRARIES:
        import_module(name)
    arguments = ["-x", "-q", "-rfE", "--no-header", "--tb=no", "-p", "no:cacheprovider", f"--timeout={3 * LIMIT_S}"]
    arguments += ["-m", "not slow and not e2e and not rest", "--timeout-method=thread", *tests]
    arguments += [f"--deselect={each}" for each in unsound]
    printed = tree.with_name(f"{tree.name}.txt")
    process = multiprocessing.get_context("fork").Process(target=_test, args=(arguments, tree, compiled, printed))
    process.start()
    process.join(6 * LIMIT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGKILL)  # its children, too
    process.join()
    lines = [line for line in printed.read_text().splitlines() if line.startswith(("FAILED", "ERROR"))]
    failed = [line.partition(" ")[2].partition(" - ")[0] for line in lines]  # names of tests may have spaces
    return [*failed, ENDED][0] if process.exitcode not in (0, 5) else ""  # 5: all were left out


def _test(arguments: list[str], tree: Path, compiled: Path, printed: Path) -> None:
    """Run pytest in a fork of this process, which has loaded the libraries, with the modules of `tree`."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
    os.dup2(os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    os.dup2(1, 2)
    os.chdir(tree)
    sys.path[:] = [str(tree), *(each for each in sys.path if each not in ("", str(ROOT)))]
    os.environ |= {"PYTHONPATH": str(tree), "NUMBA_CACHE_DIR": str(compiled)}
    sys.modules["numba"].config.reload_config()
    for name in [each for each in sys.modules if each.partition(".")[0] in TOPS]:
        del sys.modules[name]
    sys.modules["__main__"] = ModuleType("__main__")  # which processes of the tests would import
    sys.exit(sys.modules["pytest"].main(arguments))


@cache
def nearest_tests(file: str) -> list[str]:
    """Return the examples of a file and the files of tests that import it, first those with few imports between."""
    level, distances = {file}, {file: 0.0}
    for distance in (1, 2, 3):
        level = {path for path, imports in imported_files().items() if imports & level} - distances.keys()
        distances |= {path: distance + 0.5 * (Path(path).parts[1] not in Path(file).parts) for path in level}
    tests = [each for each in distances if each.startswith("tests/") and "/test_" in each]
    near = sorted((distances[each], each) for each in tests if Path(each).parts[1] not in SLOW_TESTS)[:NEAREST]
    examples = [f"tests/docs/test_examples.py::test_the_examples_of_a_module_run[{file}]"]
    return [*(examples if ">>> " in (ROOT / file).read_text() else []), *(each for _, each in near)]


@cache
def imported_files() -> dict[str, set[str]]:
    """Return the files that each Python file of the product and its tests imports."""
    paths = [path for top in TOPS[:-1] for path in (ROOT / top).rglob("*.py")]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): str(path.relative_to(ROOT)) for path in paths}
    found = {path: list(ast.walk(ast.parse((ROOT / path).read_text()))) for path in names.values()}
    return {
        path: {
            names[name]
            for each in nodes
            if isinstance(each, ast.ImportFrom)
            for name in (each.module or "", f"{each.module}.__init__", *(f"{each.module}.{a.name}" for a in each.names))
            if name in names
        }
        for path, nodes in found.items()
    }
