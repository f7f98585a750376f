#!/usr/bin/env bash
# Compile every variant in kernels/variants.txt into hsaco/NAME.hsaco and write hsaco/manifest.json.
#
#   1. choose the compiler: $HIPCC, else hipcc on PATH, else /opt/rocm/bin/hipcc, else the pip toolchain
#   2. compile the variants, one per core at a time, into a temporary folder
#   3. refuse spills, scratch, a dynamic stack, v_mfma_scale_*, offload bundles and foreign targets; write the manifest
#   4. print the table of resources
#   5. move the result to hsaco/, or with --check compare it with what is there
#
# ./build.sh                  rebuild hsaco/
# ./build.sh --check          rebuild with the pinned pip toolchain and compare byte for byte; hsaco/ is not touched
# ./build.sh --out DIR        write to DIR instead of hsaco/
#            --only NAME      build just this variant (may be repeated; needs --out)
#            --kernels DIR    take sources and variants from DIR instead of kernels/
set -euo pipefail

# All that the compiler is told beside the variant's own macros. The source uses no HIP header and no device library
# (-nogpuinc, -nogpulib), so that one text compiles in every environment. Code object v5 loads on every ROCm that knows
# gfx950. -fuse-cuid=none keeps a hash of the source's absolute path out of the symbols. -fno-slp-vectorize keeps packed
# float32, which cannot overlap an MFMA, out of the epilogue. -fno-honor-nans makes relu one v_max_f32, for which NaN is
# 0; what the kernels promise of NaN is tested on the code objects themselves (tests/test_forms.py).
FLAGS=(-O3 -mcode-object-version=5 -fhip-kernel-arg-name -nogpuinc -nogpulib -fuse-cuid=none -fno-slp-vectorize
       -fno-honor-nans -Wall -Wextra)

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
die() { echo "build.sh: $*" >&2; exit 1; }

check=0 out='' kernels=$root/kernels only=()
while (( $# )); do
    case $1 in
        --check) check=1 ;;
        --out) out=$(mkdir -p "${2:?--out needs a folder}" && cd "$2" && pwd); shift ;;
        --only) only+=("${2:?--only needs a name}"); shift ;;
        --kernels) kernels=$(cd "${2:?--kernels needs a folder}" && pwd); shift ;;
        -h | --help) sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit ;;
        *) die "unknown argument $1. Run ./build.sh --help." ;;
    esac
    shift
done
(( ! ${#only[@]} )) || [[ $out ]] || die "--only needs --out: hsaco/ is always built whole."
(( ! check )) || [[ ! $out ]] || die "--check compares with hsaco/; it takes no --out."

# 1. Choose the compiler.
python=${PYTHON:-python3}
driver=$root/kernels/ziglang_hipcc.py
has_python() { "$python" -c "import $1" 2> /dev/null; }
has_python elftools && has_python msgpack ||
    die "$python has no pyelftools or no msgpack. Run: pip install \".[build]\", or set PYTHON to one that has them."
if (( check )); then
    pinned=$(sed -n 's/.*"ziglang==\([^"]*\)".*/\1/p' "$root/pyproject.toml" | head -n 1)
    found=$("$python" "$driver" --version 2> /dev/null | sed -n 's/^ziglang //p') || true
    [[ $found == "$pinned" ]] ||
        die "--check needs ziglang $pinned, $python has ${found:-none}. Run: pip install \".[build]\", or set PYTHON."
    hipcc=("$python" "$driver")
elif [[ ${HIPCC:-} ]]; then
    command -v "$HIPCC" > /dev/null || die "HIPCC is $HIPCC, which is no program. Set HIPCC to a hipcc, or unset it."
    hipcc=("$HIPCC")
elif command -v hipcc > /dev/null; then
    hipcc=(hipcc)
elif [[ -x /opt/rocm/bin/hipcc ]]; then
    hipcc=(/opt/rocm/bin/hipcc)
elif has_python ziglang; then
    hipcc=("$python" "$driver")
else
    die "no compiler for gfx950. Looked for \$HIPCC, hipcc on PATH, /opt/rocm/bin/hipcc and the package ziglang of $python." \
        "Set HIPCC, or run: pip install \".[build]\", or set PYTHON to one that has it."
fi
compiler=$("${hipcc[@]}" --version | grep -E 'ziglang|HIP version|clang version' | paste -sd '#' | sed 's/#/, /g') ||
    die "${hipcc[*]} --version failed or names no clang. Set HIPCC to a hipcc."
echo "compiler: $compiler"

# 2. Compile. The source is named relative to its folder, so that no path gets into the ELF.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/hsaco"

compile_one() {  # name source defines...
    local name=$1 source=$2 status=0
    shift 2
    cd "$kernels"
    "${hipcc[@]}" --genco --offload-arch=gfx950 --no-gpu-bundle-output "${FLAGS[@]}" "$@" -o "$work/hsaco/$name.hsaco" "$source.hip" \
        < /dev/null > "$work/$name.log" 2>&1 || status=$?
    [[ ! -s $work/$name.log ]] || { echo "build.sh: $name:"; cat "$work/$name.log"; } >&2
    (( ! status )) || echo "build.sh: $name: the compiler failed with status $status." >&2
    return "$status"
}

jobs=$(nproc 2> /dev/null || getconf _NPROCESSORS_ONLN) running=0 failed=0 built=()
while read -r source heads rows addressing waves preloaded rest; do
    [[ $waves && ! $rest ]] ||
        die "$kernels/variants.txt: a line is '$source $heads $rows $addressing $waves $preloaded $rest'," \
            "wanted five or six columns: source H R A W and perhaps P."
    name=${source}_h${heads}_r${rows}_${addressing}
    case $addressing in
        page) gather=0 ;;
        gather) gather=1 ;;
        *) die "$kernels/variants.txt: addressing is '$addressing', wanted page or gather." ;;
    esac
    (( ! ${#only[@]} )) || [[ " ${only[*]} " == *" $name "* ]] || continue
    defines=("-DKERNEL_NAME=$name" "-DNUM_HEADS=$heads" "-DROWS_PER_WAVE=$rows" "-DGATHER=$gather"
             "-DWAVES_PER_SIMD=$waves")
    [[ ! $preloaded ]] || defines+=(-mllvm "-amdgpu-kernarg-preload-count=$preloaded")
    echo "$name $heads $rows $addressing ${FLAGS[*]} ${defines[*]}" >> "$work/variants"
    built+=("$name")
    if (( running >= jobs )); then wait -n || failed=1; running=$((running - 1)); fi
    compile_one "$name" "$source" "${defines[@]}" &
    running=$((running + 1))
done < <(grep -v '^ *\(#\|$\)' "$kernels/variants.txt")
while (( running )); do wait -n || failed=1; running=$((running - 1)); done
(( ! failed )) || die "nothing was written."
for name in ${only[@]+"${only[@]}"}; do
    [[ " ${built[*]-} " == *" $name "* ]] || die "$kernels/variants.txt has no variant $name."
done
(( ${#built[@]} )) || die "$kernels/variants.txt lists no variant."

# 3. and 4. Check, write the manifest, print the table.
PYTHONPATH=$root "$python" "$root/kernels/write_manifest.py" "$work/hsaco" "$kernels" "$compiler" < "$work/variants"

# 5. Compare or move.
if (( check )); then
    for file in $(cd "$work/hsaco" && ls) $(cd "$root/hsaco" && ls); do
        case $file in
            *.hsaco | manifest.json) cmp -s "$work/hsaco/$file" "$root/hsaco/$file" || echo "$file" ;;
        esac
    done | sort -u > "$work/differs"
    [[ ! -s $work/differs ]] ||
        die "hsaco/ is not what the sources and ziglang $pinned give. Differs: $(paste -sd ' ' "$work/differs")." \
            "Run ./build.sh with HIPCC unset and no hipcc on PATH, and commit hsaco/."
    echo "hsaco/: ${#built[@]} code objects and manifest.json are byte for byte what the sources give."
else
    out=${out:-$root/hsaco}
    rm -f "$out"/*.hsaco "$out/manifest.json"
    mv "$work"/hsaco/* "$out"
    echo "wrote ${#built[@]} code objects and manifest.json to $out"
fi
