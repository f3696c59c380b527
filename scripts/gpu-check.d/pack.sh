# Of scripts/gpu-check: the programs with their libraries, for a machine that has none of ours.
# shellcheck shell=bash

# Names of glibc's own libraries: always those of the machine that runs the programs.
is_glibc() {
  case $1 in
    linux-vdso.so* | ld-linux* | libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | \
      libresolv.so* | libutil.so* | libnss_* | libanl.so*) return 0 ;;
  esac
  return 1
}

pack() {  # pack BUILD DIR
  local from=$1 to file name path missing built=()
  [[ -x $from/mtl ]] || die "there is no $from/mtl" "build first: ninja -C $from" 4
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  for file in mtl libmtl_cuda.so tests/test_runtime_device bench/{train,attention,products,own_product}_gpu; do
    if [[ -e $from/$file ]]; then
      built+=("$file")
    else
      say "not built, and so not packed: $file"
    fi
  done
  # Else COMMIT would name sources that the programs are not of. From a copy of build.ninja: by the
  # file's own name ninja says that CMake is to look for new sources, always, and no more.
  cp "$from/build.ninja" "$scratch/copy.ninja" 2>/dev/null ||
    die "there is no $from/build.ninja, and so no way to see whether the programs are up to date" \
      "build with Ninja: cmake -S . -B $from -G Ninja && cmake --build $from" 4
  ninja -C "$from" -f "$scratch/copy.ninja" -n "${built[@]}" >"$scratch/ninja.log" 2>&1 || true
  grep -q 'no work to do' "$scratch/ninja.log" ||
    die "the programs of $from are older than the sources: $(tail -n 1 "$scratch/ninja.log")" \
      "build, then pack again: cmake --build $from" 4
  to=$scratch/to
  mkdir -p "$to/tests" "$to/bench" "$to/lib/gcc"
  for file in "${built[@]}"; do cp "$from/$file" "$to/$file"; done
  local programs=()
  while IFS= read -r file; do programs+=("$file"); done < <(find "$to" -type f)
  strip --strip-unneeded "${programs[@]}"
  missing=$(for file in "${programs[@]}"; do ldd "$file"; done | awk '/not found/ {print $1}' |
    grep -vE '^lib(cuda|cudart|cublas|cublasLt|nccl|cudnn)\b' || true)
  [[ -z $missing ]] || die "libraries are missing here: $missing" "scripts/install-deps build"
  while read -r name path; do
    is_glibc "$name" && continue
    # CUDA's belong to the machine with the GPU.
    [[ $name =~ ^lib(cuda|cudart|cublas|cublasLt|nccl|cudnn) ]] && continue
    case $name in
      # Apart: others' programs may need newer ones, which serve ours as well.
      libstdc++.so* | libgcc_s.so*) cp -L "$path" "$to/lib/gcc/$name" ;;
      *) cp -L "$path" "$to/lib/$name" ;;
    esac
  done < <(for file in "${programs[@]}"; do ldd "$file"; done |
    awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' | sort -u)
  git -C "$root" rev-parse HEAD >"$to/COMMIT" 2>/dev/null || echo unknown >"$to/COMMIT"
  [[ -z $(git -C "$root" status --porcelain 2>/dev/null | head -n 1) ]] ||
    echo "with uncommitted changes" >>"$to/COMMIT"
  mkdir -p "$2"
  XZ_OPT='-6 -T0' tar -C "$to" -cJf "$2/pack.tar.xz" .  # half of what gzip leaves
  local size
  size=$(du -m "$2/pack.tar.xz" | cut -f 1)
  say "packed into $2/pack.tar.xz: $size MiB"
  [[ $size -le 60 ]] || die "that is more than 60 MiB" "build Release, without sanitizers" 1
}

# unpack DIR SCRATCH: prints where the programs are.
unpack() {
  if [[ ! -r $1/pack.tar.xz ]]; then
    printf '%s\n' "$1"
    return
  fi
  mkdir "$2/from"
  tar -C "$2/from" -xJf "$1/pack.tar.xz" 2>"$2/unpack.log" ||
    die "$1/pack.tar.xz cannot be unpacked into $2: $(tail -n 1 "$2/unpack.log")" \
      "make room there, or set TMPDIR to a folder that has some; else pack again"
  printf '%s\n' "$2/from"
}
