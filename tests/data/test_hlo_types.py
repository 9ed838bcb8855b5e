"""Types of HLO text: buffers, bounded sizes, tuples within tuples, tiled layouts, pairs of a start and its done."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from gst.cli import main
from gst.data.hlo.reader import read_hlo

PINNED = """\
HloModule ring, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %pinned = b(f32[8]{0}) custom-call(%p), custom_call_target="Pin", output_to_operand_aliasing={{}: (0, {})}
  %changed = b(f32[8]{0}) custom-call(b(f32[8]{0}) %pinned), custom_call_target="scale"
  ROOT %r = f32[8]{0} custom-call(%changed), custom_call_target="Unpin", output_to_operand_aliasing={{}: (0, {})}
}
"""
BUFFER_IN_A_LOOP = """\
HloModule ring

%cond (q: (s32[], b(f32[8]{0:T(128)S(1)}))) -> pred[] {
  %q = (s32[], b(f32[8]{0:T(128)S(1)})) parameter(0)
  %i = s32[] get-tuple-element(%q), index=0
  %n = s32[] constant(5)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

%body (q: (s32[], b(f32[8]{0:T(128)S(1)}))) -> (s32[], b(f32[8])) {
  %q = (s32[], b(f32[8]{0:T(128)S(1)})) parameter(0)
  %i = s32[] get-tuple-element(%q), index=0
  %one = s32[] constant(1)
  %j = s32[] add(%i, %one)
  %b = b(f32[8]{0:T(128)S(1)}) get-tuple-element(%q), index=1
  %c = b(f32[8]{0:T(128)S(1)}) custom-call(%b), custom_call_target="scale", output_to_operand_aliasing={{}: (0, {})}
  ROOT %t = (s32[], b(f32[8]{0:T(128)S(1)})) tuple(%j, %c)
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %zero = s32[] constant(0)
  %pinned = b(f32[8]{0}) custom-call(%p), custom_call_target="Pin", output_to_operand_aliasing={{}: (0, {})}
  %in = (s32[], b(f32[8]{0})) tuple(%zero, %pinned)
  %w = (s32[], b(f32[8]{0})) while(%in), condition=%cond, body=%body
  %x = b(f32[8]{0}) get-tuple-element(%w), index=1
  ROOT %r = f32[8]{0} custom-call(%x), custom_call_target="Unpin"
}
"""
BOUNDED = """\
HloModule dyn, entry_computation_layout={(f32[<=8,4]{1,0})->f32[<=8,4]{1,0}}

ENTRY %main (p: f32[<=8,4]) -> f32[<=8,4] {
  %p = f32[<=8,4]{1,0:T(8,128)S(1)} parameter(0)
  %n = s32[]{:T(128)} get-dimension-size(%p), dimensions={0}
  %q = f32[<=8,4]{1,0:T(8,128)(2,1)} negate(f32[<=8,4]{1,0:T(8,128)} %p)
  ROOT %r = f32[<=8,4]{1,0} set-dimension-size(%q, %n), dimensions={0}
}
"""
LOOPS = """\
HloModule n

%cond (q: ((s32[], f32[8]), (f32[8], (f32[4])))) -> pred[] {
  %q = ((s32[], f32[8]{0}), (f32[8]{0}, (f32[4]{0}))) parameter(0)
  %a = (s32[], f32[8]{0}) get-tuple-element(%q), index=0
  %i = s32[] get-tuple-element(%a), index=0
  %n = s32[] constant(5)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

%inner_cond (q: (s32[], f32[8])) -> pred[] {
  %q = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%q), index=0
  %n = s32[] constant(3)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

%inner_body (q: (s32[], f32[8])) -> (s32[], f32[8]) {
  %q = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%q), index=0
  %x = f32[8]{0} get-tuple-element(%q), index=1
  %one = s32[] constant(1)
  %j = s32[] add(%i, %one)
  %y = f32[8]{0} add(%x, %x)
  ROOT %t = (s32[], f32[8]{0}) tuple(%j, %y)
}

%mid_body (q: (s32[], f32[8])) -> (s32[], f32[8]) {
  %q = (s32[], f32[8]{0}) parameter(0)
  ROOT %w = (s32[], f32[8]{0}) while(%q), condition=%inner_cond, body=%inner_body
}

%body (q: ((s32[], f32[8]), (f32[8], (f32[4])))) -> ((s32[], f32[8]), (f32[8], (f32[4]))) {
  %q = ((s32[], f32[8]{0}), /*index=1*/(f32[8]{0}, (f32[4]{0}))) parameter(0)
  %a = (s32[], f32[8]{0}) get-tuple-element(%q), index=0
  %b = (f32[8]{0}, (f32[4]{0})) get-tuple-element(%q), index=1
  %w = (s32[], f32[8]{0}) while(%a), body=%mid_body, condition=%inner_cond, backend_config={"known_trip_count":{"n":3}}
  ROOT %t = ((s32[], f32[8]{0}), (f32[8]{0}, (f32[4]{0}))) tuple(%w, %b)
}

ENTRY %main (p: ((s32[], f32[8]), (f32[8], (f32[4])))) -> ((s32[], f32[8]), (f32[8], (f32[4]))) {
  %p = ((s32[], f32[8]{0}), (f32[8]{0}, (f32[4]{0}))) parameter(0)
  ROOT %w = ((s32[], f32[8]{0}), (f32[8]{0}, (f32[4]{0}))) while(%p), condition=%cond, body=%body
}
"""
COLLECTIVES = """\
HloModule c

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

ENTRY %main (p: f32[8], q: bf16[4]) -> f32[16] {
  %p = f32[8]{0} parameter(0)
  %q = bf16[4]{0} parameter(1)
  %ars = f32[8]{0} all-reduce-start(%p), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%add
  %ard = f32[8]{0} all-reduce-done(%ars)
  %ars2 = (f32[8]{0}, f32[8]{0}) all-reduce-start(%p, %ard), replica_groups=[2,4]<=[4,2]T(1,0), to_apply=%add
  %ard2 = (f32[8]{0}, f32[8]{0}) all-reduce-done(%ars2)
  %g0 = f32[8]{0} get-tuple-element(%ard2), index=1
  %ags = (f32[8]{0}, f32[16]{0}) all-gather-start(%g0), channel_id=3, replica_groups={}, dimensions={0}
  %agd = f32[16]{0} all-gather-done(%ags)
  %cps = (f32[16]{0}, f32[16]{0}, u32[], u32[]) collective-permute-start(%agd), source_target_pairs={{0,1},{1,0}}
  %cpd = f32[16]{0} collective-permute-done(%cps)
  %cs = (f32[16]{0:S(5)}, f32[16]{0}, u32[]) copy-start(%cpd)
  %cd = f32[16]{0:S(5)} copy-done(%cs)
  %rss = ((f32[16]{0}), f32[8]{0}) reduce-scatter-start(%cd), channel_id=5, dimensions={0}, to_apply=%add
  %rsd = f32[8]{0} reduce-scatter-done(%rss)
  %tok = token[] after-all()
  %snd = (f32[8]{0}, u32[], token[]) send(%rsd, %tok), channel_id=6
  %sd = token[] send-done(%snd), channel_id=6
  %rv = (f32[8]{0}, u32[], token[]) recv(%sd), channel_id=7
  %rd = (f32[8]{0}, token[]) recv-done(%rv), channel_id=7
  %r0 = f32[8]{0} get-tuple-element(%rd), index=0
  ROOT %e = f32[16]{0} concatenate(%r0, %rsd), dimensions={0}
}
"""
ASYNC = """\
HloModule c

%wrapped (a: f32[8], b: f32[8]) -> f32[8] {
  %a = f32[8] parameter(0)
  %b = f32[8] parameter(1)
  ROOT %s = f32[8] add(%a, %b)
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %s = ((f32[8]{0}, f32[8]{0}), f32[8]{0}, s32[]) async-start(%p, %p), calls=%wrapped, async_execution_thread="host"
  %u = ((f32[8]{0}, f32[8]{0}), f32[8]{0}, s32[]) async-update(%s)
  %d = f32[8]{0} async-done(%u)
  %s2 = ((f32[8]{0}), f32[8]{0}, s32[]) custom-call-start(%d), custom_call_target="foo"
  ROOT %d2 = f32[8]{0} custom-call-done(%s2)
}
"""
SMALL_TYPES = """\
HloModule t

ENTRY %main (p: f8e4m3fn[8]) -> f4e2m1fn[8] {
  %p = f8e4m3fn[8]{0:T(128)(4,1)} parameter(0)
  %a = s4[8]{0:E(4)} convert(%p)
  %b = u2[8]{0} convert(%a)
  %c = f8e8m0fnu[8] convert(%b)
  %o = opaque[] custom-call(%c), custom_call_target="handle"
  %k = token[] after-all()
  %d = bf16[8]{0:T(8,128)(2,1)S(3)} convert(%c)
  %e = c64[8]{0} convert(%d)
  %z = f32[0]{0} constant({})
  %sp = f32[8]{0:D(C)} convert(%e)
  ROOT %r = f4e2m1fn[8] convert(%sp)
}
"""
ALL = {
    "pinned": PINNED, "buffer_in_a_loop": BUFFER_IN_A_LOOP, "bounded": BOUNDED, "loops": LOOPS,
    "collectives": COLLECTIVES, "async": ASYNC, "small_types": SMALL_TYPES,
}  # fmt: skip


def written(folder: Path, text: str) -> Path:
    path = folder / "module.hlo"
    path.write_text(text)
    return path


def without_buffers(text: str) -> str:
    """Return the module with arrays where it has buffers of them."""
    while (start := text.find("b(f32")) >= 0:
        end = start + re.match(r"b\([^()]*(?:\([^()]*\)[^()]*)*\)", text[start:]).end() - 1  # type: ignore[union-attr]
        text = text[:start] + text[start + 2 : end] + text[end + 1 :]
    return text


@pytest.mark.parametrize("name", ALL)
def test_trace_reads_it(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, ALL[name])
    assert main(["trace", "--hlo", str(path), "--out", str(tmp_path / "graph.npz")]) == 0


@pytest.mark.parametrize("text", [PINNED, BUFFER_IN_A_LOOP], ids=["pinned", "in_a_loop"])
def test_a_buffer_is_read_as_its_array(text: str, tmp_path: Path) -> None:
    plain = without_buffers(text)
    assert "b(f32" in text and "b(f32" not in plain
    buffer, array = read_hlo(written(tmp_path, text)), read_hlo(written(tmp_path, plain))
    np.testing.assert_array_equal(buffer.node_features, array.node_features)
    np.testing.assert_array_equal(buffer.edges, array.edges)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("f32[?,4]", "f32[?,4] has a size without a bound"),
        ("q(f32[8])", "'q' is no type of elements"),
        ("b((f32[8], f32[8]))", "want a name"),
        ("b(b(f32[8]))", "'b' is no type of elements"),
    ],
)  # fmt: skip
def test_other_types_are_refused_by_name(shape: str, words: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"HloModule m\n\nENTRY e {{\n  ROOT p = {shape} parameter(0)\n}}\n")
    with pytest.raises(ValueError, match="line 4") as error:
        read_hlo(path)
    assert words in str(error.value)
