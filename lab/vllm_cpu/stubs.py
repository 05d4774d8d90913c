"""Makes shared libraries in place of CUDA's, so that PyPI's torch can be imported without 2.7 GB of CUDA packages.

usage: stubs.py TORCH_LIB OUT       TORCH_LIB: torch's folder `lib`; OUT: gets one library for each missing one

Each has the name, the versions and the functions that torch's own libraries look for. A function only returns "no
device", so torch finds no GPU and works on the CPU. Needs binutils (readelf, as, ld) and an x86_64 machine.
"""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

CUDA = ("libcu", "libnccl", "libnv")
"""How the names of CUDA's libraries begin."""
NO_DEVICE = 100
"""cudaErrorNoDevice."""
REGISTERS = "__cuda"
"""How the functions begin that register kernels while a library is loaded. These must succeed."""


def readelf(what: str, library: Path) -> list[str]:
    command = ["readelf", "--wide", what, str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def needed(library: Path) -> set[str]:
    """The libraries that this one asks for."""
    return {match[1] for line in readelf("--dynamic", library) if (match := re.search(r"NEEDED.*\[(.+)\]", line))}


def versions(library: Path) -> dict[str, str]:
    """The symbol versions that this one asks for -> the library that must have them."""
    found, provider = {}, ""
    for line in readelf("--version-info", library):
        if match := re.search(r"File: (\S+)", line):
            provider = match[1]
        elif provider and (match := re.search(r"Name: (\S+)\s+Flags:", line)):
            found[match[1]] = provider
    return found


def symbols(library: Path) -> tuple[set[str], set[tuple[str, str]]]:
    """The names that this one defines, and (name, version) of those that it looks for; version "" if it has none."""
    defined, undefined = set(), set()
    for line in readelf("--dyn-syms", library):
        cells = line.split()
        if len(cells) < 8 or not cells[0].endswith(":") or cells[4] == "LOCAL":
            continue
        name, _, version = cells[7].partition("@")
        if cells[6] == "UND":
            undefined.add((name, version))
        else:
            defined.add(name)
    return defined, undefined


def assemble(soname: str, wanted: dict[str, set[str]], out: Path) -> None:
    """Write the library `soname`. `wanted` is version -> names; those of version "" have none."""
    code = [".text"]
    for name in sorted(set().union(*wanted.values())):
        value = 0 if name.startswith(REGISTERS) else NO_DEVICE
        code += [f".globl {name}", f".type {name}, @function", f"{name}: mov ${value}, %eax", "ret"]
    script = [
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};"
        for version, names in sorted(wanted.items())
        if version
    ]
    source, versioned, made = out / "stub.s", out / "stub.map", out / "stub.o"
    source.write_text("\n".join(code) + '\n.section .note.GNU-stack,"",@progbits\n')
    versioned.write_text("\n".join(script) + "\n")
    subprocess.run(["as", "-o", made, source], check=True)
    options = [f"--version-script={versioned}"] if script else []
    subprocess.run(["ld", "-shared", "-soname", soname, *options, "-o", str(out / soname), str(made)], check=True)
    for path in (source, versioned, made):
        path.unlink()


def wanted_of(libraries: list[Path]) -> dict[str, dict[str, set[str]]]:
    """Each of CUDA's libraries that these ask for -> version (or "") -> the names that it must have."""
    own = {path.name for path in libraries}
    sonames = {name for path in libraries for name in needed(path) if name.startswith(CUDA)} - own
    wanted: dict[str, dict[str, set[str]]] = {soname: defaultdict(set) for soname in sonames}
    defined: set[str] = set()
    unversioned: set[str] = set()
    for path in libraries:
        provider = versions(path)
        for version, soname in provider.items():
            if soname in wanted:
                # the loader asks for the version even if no name has it
                wanted[soname].setdefault(version, set())
        names, undefined = symbols(path)
        defined |= names
        for name, version in undefined:
            if not version:
                unversioned.add(name)
            elif provider.get(version) in wanted:
                wanted[provider[version]][version].add(name)
    # which library has a name without a version is not said, and the first that is loaded will do. Such names are all
    # CUDA's: what comes from libc and the compiler has versions
    wanted[min(wanted)][""] = unversioned - defined
    return wanted


def main() -> None:
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    wanted = wanted_of([path for path in sorted(folder.iterdir()) if ".so" in path.name and path.is_file()])
    out.mkdir(parents=True, exist_ok=True)
    for soname, names in wanted.items():
        assemble(soname, names, out)
    functions = sum(len(names) for versioned in wanted.values() for names in versioned.values())
    print(f"stubs: {len(wanted)} libraries with {functions} functions")


if __name__ == "__main__":
    main()
