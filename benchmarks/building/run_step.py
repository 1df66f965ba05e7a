"""Runs a command and prints what it took, one JSON object: `python -IS run_step.py LOG COMMAND...`.

A process of its own, and a small one: the peak that Linux counts of a command includes whoever forked it.
"""

import json
import os
import subprocess
import sys
import time


def main(log: str, *command: str) -> None:
    """`exit_code`, negative for a signal; `seconds` of wall clock, `cpu_seconds` of all threads, `peak_bytes` resident,
    of the largest process. Or `error`, if there is no such command."""
    with open(log, "wb") as said:
        begin = time.perf_counter()
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
        except OSError as error:
            print(json.dumps({"error": error.strerror}))
            return
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)  # it has been waited for
    taken = {"seconds": seconds, "cpu_seconds": used.ru_utime + used.ru_stime, "peak_bytes": 1024 * used.ru_maxrss}
    print(json.dumps({"exit_code": process.returncode, **taken}))


if __name__ == "__main__":
    main(*sys.argv[1:])
