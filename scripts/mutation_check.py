#!/usr/bin/env python3
"""Changes one line of the arithmetic at a time (scripts/mutations.json) and asks who notices: `samba verify --quick`
first, then the tests that the change names, then the long tests.

    scripts/mutation_check.py [--scratch FOLDER] [--jobs N] [--only PART] [--most N] [--cmake=FLAG...]

The changes are made in a copy of the committed files, never in this folder: FOLDER/tree, by default below
build/mutation. What was found is kept in FOLDER/results.tsv, so that an interrupted run goes on where it ended; --most N
ends it after so many changes. Prints a table in Markdown; ends with 1 when a change went unnoticed.
"""
import argparse
import io
import json
import pathlib
import subprocess
import sys
import tarfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LONG = ["field_reports_test", "golden_columns_long_test", "golden_hashes_test", "random_blocks_long_test"]


def run(command, limit=3600):
    """Exit code and output of a command; -1 when it takes too long."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit)
    except subprocess.TimeoutExpired:
        return -1, "it takes too long"
    return done.returncode, done.stdout.decode(errors="replace")


class Check:
    def __init__(self, scratch, jobs, cmake):
        self.tree = scratch / "tree"
        self.build_folder = self.tree / "build/w"
        self.jobs = jobs
        self.lay_files()
        self.must(["cmake", "-S", str(self.tree), "-B", str(self.build_folder), "-G", "Ninja",
                   "-DCMAKE_BUILD_TYPE=Release"] + cmake)
        self.must(self.build_command(["samba_cli"]))
        commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], stdout=subprocess.PIPE, check=True)
        sound = scratch / "sound"  # the commit whose own state was found to pass
        if not sound.exists() or sound.read_bytes() != commit.stdout:
            code, output = self.verify()
            if code != 0:
                sys.exit("samba verify --quick fails without any change:\n" + output)
            sound.write_bytes(commit.stdout)

    def lay_files(self):
        """The committed files; those that have their content already keep their times, so that little is built anew."""
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", "HEAD"], stdout=subprocess.PIPE, check=True)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            for member in files:
                path = self.tree / member.name
                if not member.isfile():
                    continue
                content = files.extractfile(member).read()
                if path.exists() and path.read_bytes() == content:
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                path.chmod(member.mode)

    def must(self, command):
        code, output = run(command)
        if code != 0:
            sys.exit(" ".join(command) + "\n" + output)

    def build_command(self, targets):
        return ["ninja", "-C", str(self.build_folder), "-j", str(self.jobs)] + targets

    def verify(self):
        return run([str(self.build_folder / "samba"), "verify", "--quick", "--progress", "never"])

    def test(self, name):
        if not list(self.tree.glob(f"test/**/{name}.cpp")):
            sys.exit(f"there is no test {name}")
        self.must(self.build_command([name]))
        return run([str(self.build_folder / "test" / name)])[0] != 0

    def noticed_by(self, tests):
        self.must(self.build_command(["samba_cli"]))
        code, output = self.verify()
        if code != 0:
            return "samba verify --quick"
        for name in tests:
            if self.test(name):
                return name
        for name in LONG:
            if self.test(name):
                return name + " (long)"
        return ""

    def change(self, mutation):
        path = self.tree / mutation["file"]
        sound = path.read_text()
        if sound.count(mutation["before"]) != 1:
            sys.exit(f"{mutation['file']} does not have exactly once: {mutation['before']}")
        path.write_text(sound.replace(mutation["before"], mutation["after"]))
        try:
            return self.noticed_by(mutation["tests"])
        finally:
            path.write_text(sound)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=pathlib.Path, default=ROOT / "build/mutation")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="a part of the file's path or of the description")
    parser.add_argument("--most", type=int, default=0, help="changes to make now; 0: all")
    parser.add_argument("--cmake", action="append", default=[], help="a flag for cmake, as --cmake=-DNAME=VALUE")
    options = parser.parse_args()
    mutations = json.loads((ROOT / "scripts/mutations.json").read_text())
    chosen = [m for m in mutations if options.only in m["file"] + " " + m["what"]]
    for mutation in chosen:
        if (ROOT / mutation["file"]).read_text().count(mutation["before"]) != 1:
            sys.exit(f"{mutation['file']} does not have exactly once: {mutation['before']}")
    options.scratch.mkdir(parents=True, exist_ok=True)
    results = options.scratch / "results.tsv"
    known = {}
    if results.exists():
        for line in results.read_text().splitlines():
            file, after, by = line.split("\t")
            known[file, after] = by
    check, made = None, 0
    for mutation in chosen:
        key = mutation["file"], mutation["after"]
        if known.get(key):
            continue
        if options.most and made == options.most:
            sys.exit(3)
        made += 1
        check = check or Check(options.scratch.resolve(), options.jobs, options.cmake)
        begin = time.time()
        known[key] = check.change(mutation)
        with results.open("a") as file:
            file.write("\t".join([*key, known[key]]) + "\n")
        print(f"{time.time() - begin:5.0f} s  {mutation['file']}: {known[key] or 'UNNOTICED'}", file=sys.stderr)

    print("| file | change | noticed by |\n|---|---|---|")
    unnoticed = 0
    for mutation in chosen:
        by = known[mutation["file"], mutation["after"]]
        unnoticed += not by
        print(f"| {mutation['file']} | {mutation['what']} | {by or '**nobody**'} |")
    print(f"\n{len(chosen)} changes, {len(chosen) - unnoticed} noticed")
    sys.exit(1 if unnoticed else 0)


if __name__ == "__main__":
    main()
