#!/usr/bin/env python3
"""Watches a sync, and draws what it saw.

  rehearsal.py watch NAME.csv WORKDIR -- apus sync --workdir WORKDIR ...
      runs the command and writes each two seconds: time, memory, open files, temporary files, processor
      time; its lines of progress go to NAME.log, each after its time
  rehearsal.py plot NAME.csv... > NAME.svg
      draws memory, temporary files, the speed of blocks by height, and predicted against true time left; several
      starts of one sync are drawn one after another
"""

import os
import re
import subprocess
import sys
import threading
import time

UNITS = {"kB": 1e-3, "MB": 1.0, "GB": 1e3}


def bytes_in(folder):
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(path, name)).st_blocks * 512
            except OSError:
                pass
    return total


def watch(out, workdir, command):
    start = time.time()
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def lines():
        with open(re.sub(r"\.csv$", ".log", out), "w") as log:
            for line in run.stderr:
                log.write(f"{time.time() - start:.0f} {line}")
                log.flush()

    reader = threading.Thread(target=lines)
    reader.start()
    with open(out, "w") as samples:
        samples.write("seconds,memory_mb,files,temporary_mb,cpu_seconds\n")
        while run.poll() is None:
            try:
                with open(f"/proc/{run.pid}/status") as status:
                    memory = int(re.search(r"VmRSS:\s+(\d+)", status.read())[1]) / 1000
                with open(f"/proc/{run.pid}/stat") as stat:
                    times = stat.read().rsplit(")", 1)[1].split()[11:13]
                cpu = sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
                files = len(os.listdir(f"/proc/{run.pid}/fd"))
            except (OSError, TypeError):
                break
            seconds, temporary = time.time() - start, bytes_in(workdir) / 1e6
            samples.write(f"{seconds:.0f},{memory:.0f},{files},{temporary:.0f},{cpu:.0f}\n")
            samples.flush()
            time.sleep(2)
    reader.join()
    return run.wait()


def seconds_of(text):
    """Reads a time such as `1 h 02 min`."""
    units = {"h": 3600, "min": 60, "s": 1}
    return sum(int(count) * units[unit] for count, unit in re.findall(r"(\d+) (h|min|s)\b", text))


def read(out):
    """Returns the samples, the speeds by height, and the predictions by time."""
    with open(out) as samples:
        rows = [[float(cell) for cell in line.split(",")] for line in list(samples)[1:]]
    speeds, left = [], []
    with open(re.sub(r"\.csv$", ".log", out)) as log:
        for line in log:
            at = float(line.split(" ", 1)[0])
            if speed := re.search(r"blocks, .*?([\d,]+) of [\d,]+ blocks, .*?([\d.]+) (kB|MB|GB)/s", line):
                height = int(speed[1].replace(",", ""))
                speeds.append((height, float(speed[2]) * UNITS[speed[3]]))
            if predicted := re.search(r"total [\d.]+ %, ([^;]*) left", line):
                left.append((at, seconds_of(predicted[1])))
    return rows, speeds, left


def panel(at, title, lines, unit):
    """Draws lines over one axis each way; each line is a color and points."""
    width, height, x0, y0 = 420, 170, 60 + 500 * (at % 2), 40 + 250 * (at // 2)
    points = [point for _, line in lines for point in line]
    right, top = (max(point[axis] for point in points) or 1 for axis in (0, 1))
    yield f'<text x="{x0}" y="{y0 - 14}" font-weight="bold">{title}</text>'
    yield f'<path d="M{x0} {y0}v{height}h{width}" fill="none" stroke="#888"/>'
    yield f'<text x="{x0 - 6}" y="{y0 + 5}" text-anchor="end">{top:,.0f}</text>'
    yield f'<text x="{x0 + width}" y="{y0 + height + 16}" text-anchor="end">{right:,.0f} {unit}</text>'
    for color, line in lines:
        path = " ".join(f"{x0 + width * x / right:.1f},{y0 + height * (1 - y / top):.1f}" for x, y in line)
        yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>'


def plot(starts):
    rows, speeds, left, end = [], [], [], 0
    for out in starts:
        of_start = read(out)
        rows += [[row[0] + end, *row[1:]] for row in of_start[0]]
        speeds += of_start[1]
        left += [(at + end, seconds) for at, seconds in of_start[2]]
        end = rows[-1][0]
    true = [(at, max(end - at, 0)) for at, _ in left]
    panels = [
        ("Memory in MB", [("#1b6", [(row[0], row[1]) for row in rows])], "s"),
        ("Temporary files in MB", [("#16b", [(row[0], row[3]) for row in rows])], "s"),
        ("Blocks in MB/s, by height", [("#b61", speeds)], "blocks"),
        ("Seconds left: predicted (red), true (grey)", [("#888", true), ("#c33", left)], "s"),
    ]
    print('<svg xmlns="http://www.w3.org/2000/svg" width="1000" height="520" font-family="sans-serif" font-size="12">')
    print('<rect width="1000" height="520" fill="#fff"/>')
    for at, (title, lines, unit) in enumerate(panels):
        print("\n".join(panel(at, title, lines, unit)))
    print("</svg>")


match sys.argv[1:]:
    case ["watch", out, workdir, "--", *command]:
        sys.exit(watch(out, workdir, command))
    case ["plot", first, *more]:
        plot([first, *more])
    case _:
        sys.exit(__doc__)
