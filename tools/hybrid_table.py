#!/usr/bin/env python3
"""The tables of docs/hybrid.md: lemma's greedy tokens beside llama.cpp's on tests/fixtures/hybrid, and what moves the logits.

usage: B=build hybrid_table.py                (builds nothing: wants build/lemma and build/tests/unit/test_hybrid; about half a minute)
"""
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
B = os.path.join(ROOT, os.environ.get("B") or "build")
HYBRID = os.path.join(ROOT, "tests/fixtures/hybrid")


def greedy():
    r = subprocess.run([f"{B}/lemma", "diff", f"{HYBRID}/hybrid-q4_k_m.gguf:cpu:f32", f"{HYBRID}/peer.safetensors:i8", "--json"], capture_output=True, text=True)
    if r.returncode not in (0, 1):
        sys.exit(r.stderr)
    j = json.loads(r.stdout)
    print("| prompt | equal | lemma | llama.cpp | arbiter | arbiter's margin over llama.cpp's | llama.cpp's own margin | 8-bit rounding reaches | class |\n"
          "| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    same = steps = 0
    for c in j["cases"]:
        steps += c["greedy"]
        same += c["greedy_equal"]
        row = c["rows"][-1]
        a, b = row["A"], row["B"]
        if c["greedy_equal"] == c["greedy"]:
            print(f"| {c['case']} | {c['greedy']} of {c['greedy']} | | | | | | | equal |")
            continue
        print(f"| {c['case']} | {c['greedy_equal']} of {c['greedy']} | {a['top']} | {b['top']} | {row['top']} | {b['deficit']:.3f} | {b['margin']:.3f} | {b['reach']:.2f} | {row['verdict']} |")
    print(f"\n{same} of {steps} tokens before the first difference; verdict: {j['verdict']}")


greedy()
print()
sys.stdout.flush()
sys.exit(subprocess.run([f"{B}/tests/unit/test_hybrid", "--table"], cwd=ROOT).returncode)
