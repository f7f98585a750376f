"""The code-object reader: what it reads, and that no damage gets past it as anything but a CodeObjectError."""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer_rt import launch
from indexer_rt.code_object import BUNDLE_MAGIC, CodeObject
from indexer_rt.errors import ChecksumError, CodeObjectError

E_ABI, E_MACHINE, E_PHOFF, E_FLAGS = 8, 18, 32, 48  # offsets in the ELF header
P_MEMSZ = 40  # offset in a program header


@pytest.fixture(scope="module")
def data(stand_in: Path) -> bytes:
    return stand_in.read_bytes()


def parse(data: bytes) -> CodeObject:
    return CodeObject.parse(data, label="k.hsaco")


def with_bytes(data: bytes, offset: int, layout: str, value: int) -> bytes:
    damaged = bytearray(data)
    struct.pack_into(layout, damaged, offset, value)
    return bytes(damaged)


def test_reads_what_the_compiler_wrote(stand_in: Path) -> None:
    code_object = CodeObject.read(stand_in)
    assert (code_object.target, code_object.version) == ("gfx950", 5)
    assert (code_object.xnack, code_object.sramecc) == ("any", "any")
    (kernel,) = code_object.kernels.values()
    assert kernel.name == stand_in.stem and kernel.symbol == f"{stand_in.stem}.kd"
    assert [arg.name for arg in kernel.explicit_args] == list(launch.ABI)
    assert kernel.kernarg_bytes == kernel.descriptor.kernarg_bytes == 180
    assert kernel.max_workgroup_size == 256 and kernel.wavefront_size == 64
    assert (kernel.vgpr_spills, kernel.sgpr_spills, kernel.private_bytes) == (0, 0, 0)
    assert struct.pack("<I", 0xBF810000) in kernel.code  # s_endpgm
    assert code_object.image_bytes(kernel.entry, len(kernel.code)) == kernel.code


def test_descriptor_fields_can_be_copied_and_unknown_ones_are_missing(data: bytes) -> None:
    (kernel,) = parse(data).kernels.values()
    assert copy.deepcopy(kernel.descriptor) == kernel.descriptor
    with pytest.raises(AttributeError, match="no_such_field"):
        kernel.descriptor.no_such_field  # noqa: B018


def test_every_truncation_is_a_code_object_error(data: bytes) -> None:
    for size in range(len(data)):
        with pytest.raises(CodeObjectError, match=r"^k\.hsaco: .* (Run ./build\.sh or reinstall the wheel|wanted)"):
            parse(data[:size])


@settings(max_examples=400, deadline=None)
@given(flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=8))
def test_flipped_bytes_parse_or_are_a_code_object_error(data: bytes, flips: list[tuple[float, int]]) -> None:
    damaged = bytearray(data)
    for where, mask in flips:
        damaged[int(where * len(data))] ^= mask
    try:
        code_object = parse(bytes(damaged))
    except CodeObjectError as error:
        assert str(error).startswith("k.hsaco")
    else:
        assert all(kernel.code for kernel in code_object.kernels.values())
    if bytes(damaged) != data:
        with pytest.raises(ChecksumError, match="the manifest says"):
            CodeObject.parse(bytes(damaged), label="k.hsaco", sha256=parse(data).sha256)


def test_every_byte_of_the_headers_may_be_anything(data: bytes) -> None:
    for offset in range(64 + 56 * 3):
        for value in (0, 0xFF, data[offset] ^ 1):
            try:
                parse(with_bytes(data, offset, "<B", value))
            except CodeObjectError as error:
                assert str(error).startswith("k.hsaco")


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(CodeObjectError, match=r"gone\.hsaco: cannot be read: No such file.*Run \./build\.sh"):
        CodeObject.read(tmp_path / "gone.hsaco")


def test_a_wrong_hash_shows_both(stand_in: Path) -> None:
    with pytest.raises(
        ChecksumError, match=rf"sha256 is {CodeObject.read(stand_in).sha256}, the manifest says 0+\. Run"
    ):
        CodeObject.read(stand_in, sha256="0" * 64)


def test_a_bundle_says_which_option_is_missing() -> None:
    with pytest.raises(CodeObjectError, match=r"an offload bundle, wanted a raw ELF.*--no-gpu-bundle-output"):
        parse(BUNDLE_MAGIC + bytes(4096))


def test_another_gpu_is_named(data: bytes) -> None:
    flags = struct.unpack_from("<I", data, E_FLAGS)[0]
    with pytest.raises(CodeObjectError, match=r"built for gfx942 \(e_flags 0x4c\); this package runs gfx950 \(0x4f\)"):
        parse(with_bytes(data, E_FLAGS, "<I", flags & ~0xFF | 0x4C))
    with pytest.raises(CodeObjectError, match=r"built for an unknown processor \(e_flags 0x1\)"):
        parse(with_bytes(data, E_FLAGS, "<I", flags & ~0xFF | 0x01))


def test_a_program_of_this_machine_is_refused() -> None:
    with pytest.raises(CodeObjectError, match=r"ELF machine is .*wanted EM_AMDGPU"):
        CodeObject.read("/proc/self/exe")


def test_another_abi_version_shows_both(data: bytes) -> None:
    for version in (0, 2, 5):
        with pytest.raises(
            CodeObjectError, match=rf"ABI version byte is {version}, wanted 3 \(v5, ROCm .*4 \(v6, ROCm"
        ):
            parse(with_bytes(data, E_ABI, "<B", version))


def test_a_huge_segment_is_refused_before_it_is_allocated(data: bytes) -> None:
    for index in range(struct.unpack_from("<H", data, 56)[0]):
        offset = struct.unpack_from("<Q", data, E_PHOFF)[0] + 56 * index
        if struct.unpack_from("<I", data, offset)[0] == 1:  # PT_LOAD
            with pytest.raises(
                CodeObjectError, match=r"damaged: a segment of \d+ bytes claims 1099511627776 in memory"
            ):
                parse(with_bytes(data, offset + P_MEMSZ, "<Q", 1 << 40))


@pytest.mark.parametrize(
    "old, new, message",
    [
        (b".value_kind", b".value_kinx", r"metadata \.value_kind is None, expected str"),
        (b"amdhsa.kernels", b"amdhsa.kernelz", r"the AMDGPU metadata note lists no kernels"),
        (b".kernarg_segment_size", b".kernarg_segment_sizf", r"metadata \.kernarg_segment_size is None, expected int"),
        (b"AMDGPU\0\0", b"AMDGPV\0\0", r"no AMDGPU metadata note"),
    ],
)
def test_damaged_metadata_names_what_is_missing(data: bytes, old: bytes, new: bytes, message: str) -> None:
    assert old in data
    with pytest.raises(CodeObjectError, match=message):
        parse(data.replace(old, new))


def test_metadata_and_descriptor_must_agree(data: bytes) -> None:
    at = data.index(b".kernarg_segment_size") + len(b".kernarg_segment_size") + 1
    assert data[at] == 180  # msgpack: uint8 marker, then the value
    with pytest.raises(
        CodeObjectError, match=r"metadata \.kernarg_segment_size is 184, the kernel descriptor says 180"
    ):
        parse(with_bytes(data, at, "<B", 184))


def test_an_argument_outside_the_kernarg_segment_is_refused(data: bytes) -> None:
    at = data.index(b".offset") + len(b".offset")
    assert data[at] == 0  # msgpack: context_lens' offset
    with pytest.raises(CodeObjectError, match=r"metadata \.offset is -1, expected int"):
        parse(with_bytes(data, at, "<B", 0xFF))
    last = data.index(b"max_model_len") + len(b"max_model_len") + len(b"\xa7.offset\xcc")
    assert data[last] == 176
    with pytest.raises(CodeObjectError, match=r"argument max_model_len ends at byte 182 of a kernarg segment of 180"):
        parse(with_bytes(data, last, "<B", 178))


def test_version_6_is_read_too(compile_kernel: Callable[..., Path]) -> None:
    path = compile_kernel("fp8_paged_mqa_logits_h32_r1_page", launch.ABI, "-mcode-object-version=6")
    assert CodeObject.read(path).version == 6


def test_bytes_outside_the_image_are_refused(data: bytes) -> None:
    with pytest.raises(CodeObjectError, match=r"k\.hsaco: 8 bytes at address 0xfff00000 lie in no loadable segment"):
        parse(data).image_bytes(0xFFF00000, 8)


def test_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(CodeObjectError, match=r"cannot be read: .* Name a file\."):
        CodeObject.read("a\0b.hsaco")
