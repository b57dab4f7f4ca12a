"""One side of lab/migrate, in a guest: a libvirtd with Nearside's hook, and a server that the other
side asks for migrations and facts. All facts come from /proc and the virtual machines' output."""

import json
import os
import re
import signal
import socket
import socketserver
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Sides by name: address and port of the server.
ADDRESSES = {"a": "10.7.0.1", "b": "10.7.0.2"}
PORT = 7000

# The states of the daemon on both sides while a virtual machine migrates. With `locked`, a stopped
# process holds the lock of starts.
STATES = ("runs", "stopped", "locked", "killed", "absent")

# Each virtual machine with the memory of its cells in MiB, all different: /proc tells them by size.
MACHINES = {"two": (24, 28), "one": (20,)}
# The nodes that they start on; 2 and 3 do not exist on the other side.
FIRST_NODES = {"two": "2,3", "one": "1"}

# An emulated host starts programs slowly: the hook's own bound would be over before it has begun.
HOOK_SECONDS = 30

FILES = {
    "/etc/libvirt/qemu.conf": 'user = "root"\ngroup = "root"\nsecurity_driver = "none"\n'
    'stdio_handler = "file"\nremember_owner = 0\nnamespaces = []\n',
    "/tmp/daemon.toml": 'found = ["machine/*"]\nscheduler = "off"\n',
}
LOCK = "/run/nearside/lock"
HOOK_LOG = Path("/tmp/hook.log")


def run(*words, check=True):
    done = subprocess.run(
        [str(word) for word in words], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr or done.stdout}")
    return done.stdout


def await_that(is_so):
    """Waits for something that has no event. Its bound is that of the whole guest: emulation on a
    busy host has no other."""
    while not (found := is_so()):
        time.sleep(0.2)
    return found


def append_once(path, line):
    text = Path(path).read_text()
    if line not in text.splitlines():
        Path(path).write_text(f"{text}{line}\n")


class Host:
    """This side."""

    def __init__(self, side, program, hook):
        self.side, self.program = side, program
        self.daemon = self.locker = None
        run("modprobe", "-a", "kvm-amd", "tun", "virtio_net")
        [card] = await_that(lambda: [it for it in os.listdir("/sys/class/net") if it != "lo"])
        run("ip", "link", "set", "lo", "up")
        run("ip", "address", "add", f"{ADDRESSES[side]}/24", "dev", card)
        run("ip", "link", "set", card, "up")
        controllers = Path("/sys/fs/cgroup/cgroup.subtree_control")
        controllers.write_text("+cpu +cpuset +memory +hugetlb")
        append_once("/etc/passwd", "libvirt-qemu:x:64055:64055::/var/lib/libvirt:/bin/false")
        append_once("/etc/group", "libvirt-qemu:x:64055:")
        for folder in ("/run/libvirt", "/var/lib/libvirt/qemu", "/etc/libvirt/hooks/qemu.d"):
            os.makedirs(folder, exist_ok=True)
        for path, text in FILES.items():
            Path(path).write_text(text)
        uuid = f"00000000-0000-4000-8000-00000000000{side}"
        Path("/etc/libvirt/libvirtd.conf").write_text(
            'auth_unix_rw = "none"\nlisten_tls = 0\nlisten_tcp = 1\nauth_tcp = "none"\n'
            "keepalive_interval = -1\n"
            f'host_uuid = "{uuid}"\n'
        )
        script = Path(hook).read_text().replace(" KILL 0.2 ", " KILL 60 ")
        command = f"{program} libvirt-hook --within {HOOK_SECONDS}"
        script = script.replace("/usr/bin/nearside libvirt-hook", command)
        script = script.replace("2>/dev/null", f"2>>{HOOK_LOG}")
        installed = Path("/etc/libvirt/hooks/qemu.d/nearside")
        installed.write_text(script)
        installed.chmod(0o755)
        HOOK_LOG.touch()
        run("hostname", f"side-{side}")
        self.libvirtd = subprocess.Popen(
            ["libvirtd", "--listen"],
            stdin=subprocess.DEVNULL,
            stderr=open("/tmp/libvirtd.log", "w"),
        )
        await_that(lambda: run("virsh", "version", check=False))
        # The first start reads the program from the host.
        run(program, "topology")

    def set_daemon(self, state):
        """Brings the daemon into a state; `killed` happens in mid-migration."""
        self.end_daemon()
        if state == "absent":
            return
        self.daemon = subprocess.Popen(
            [self.program, "daemon", "--config", "/tmp/daemon.toml"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=open("/tmp/daemon.log", "a"),
        )
        await_that(lambda: os.path.exists("/run/nearside/api.socket"))
        # The daemon may hold the lock when it is stopped: the other process comes first.
        if state == "locked":
            # One process holds the lock, and stops.
            words = ["flock", "--no-fork", LOCK, "sh", "-c", "echo held; kill -STOP $$"]
            self.locker = subprocess.Popen(words, stdout=subprocess.PIPE)
            self.locker.stdout.readline()
        if state in ("stopped", "locked"):
            self.daemon.send_signal(signal.SIGSTOP)

    def kill_daemon(self):
        self.daemon.kill()
        self.daemon.wait()

    def end_daemon(self):
        for process in (self.locker, self.daemon):
            if process and process.poll() is None:
                process.kill()
                process.wait()
        self.locker = self.daemon = None
        Path("/run/nearside/api.socket").unlink(missing_ok=True)

    def start(self, name, kernel, nodes):
        """Starts a virtual machine as `nearside place` places it on these nodes."""
        asked, placed = Path(f"/tmp/{name}.asked.xml"), Path(f"/tmp/{name}.xml")
        asked.write_text(domain_xml(name, MACHINES[name], kernel))
        placed.write_text(run(self.program, "place", "--libvirt", asked, "--nodes", nodes))
        run("virsh", "create", placed)

    def migrate(self, name, to):
        """Migrates a virtual machine. It dirties its memory faster than emulation can send it, so
        it is suspended for the last pass."""
        address = ADDRESSES[to]
        words = ["virsh", "--keepalive-interval", "0", "migrate", "--live", name]
        words += ["--timeout", "5", "--timeout-suspend"]
        words += [f"qemu+tcp://{address}/system", "--migrateuri", f"tcp://{address}"]
        began = time.monotonic()
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        took_s = round(time.monotonic() - began, 1)
        return {"ok": done.returncode == 0, "said": done.stdout.strip(), "s": took_s}

    def look(self, name):
        """What /proc tells about a virtual machine; none if it does not run here."""
        try:
            process = int(Path(f"/run/libvirt/qemu/{name}.pid").read_text())
            mappings = mappings_by_bytes(process)
            vcpus = vcpu_nodes(process)
        except (OSError, ValueError, KeyError) as error:
            print(f"{name}: {error!r}", flush=True)
            return None
        cells = []
        for cell, mib in enumerate(MACHINES[name]):
            [bytes_by_node] = mappings.get(mib << 20, [None])
            cells.append({"bytes": bytes_by_node, "vcpus": vcpus[cell]})
        serial = Path(f"/tmp/{name}.serial").read_bytes()
        return {"cells": cells, "passes": serial.count(b"."), "starts": serial.count(b"UP")}

    def hook_log(self):
        text = HOOK_LOG.read_text()
        HOOK_LOG.write_text("")
        return text.splitlines()


def mappings_by_bytes(process):
    """Bytes by node of each mapping, by its size."""
    ends = {}
    for line in Path(f"/proc/{process}/maps").read_text().splitlines():
        begin, end = (int(it, 16) for it in line.split(" ", 1)[0].split("-"))
        ends[begin] = end
    found = {}
    for line in Path(f"/proc/{process}/numa_maps").read_text().splitlines():
        begin = int(line.split(" ", 1)[0], 16)
        page = int(next(iter(re.findall(r"kernelpagesize_kB=(\d+)", line)), 4)) << 10
        nodes = {node: int(pages) * page for node, pages in re.findall(r" N(\d+)=(\d+)", line)}
        found.setdefault(ends.get(begin, begin) - begin, []).append(nodes)
    return found


def vcpu_nodes(process):
    """The nodes that each vCPU may run on."""
    nodes = {}
    for task in Path(f"/proc/{process}/task").iterdir():
        name = (task / "comm").read_text().strip()
        if vcpu := re.fullmatch(r"CPU (\d+)/KVM", name):
            status = (task / "status").read_text()
            cpus = re.search(r"Cpus_allowed_list:\t(.*)", status)[1]
            nodes[int(vcpu[1])] = sorted({node_of_cpu(cpu) for cpu in cpu_list(cpus)})
    return [nodes[vcpu] for vcpu in sorted(nodes)]


def cpu_list(text):
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def node_of_cpu(cpu):
    [node] = Path(f"/sys/devices/system/cpu/cpu{cpu}").glob("node*")
    return node.name.removeprefix("node")


def domain_xml(name, cells_mib, kernel):
    cells = "".join(
        f"<cell id='{cell}' cpus='{cell}' memory='{mib}' unit='MiB'/>"
        for cell, mib in enumerate(cells_mib)
    )
    return f"""<domain type='kvm'>
  <name>{name}</name>
  <memory unit='MiB'>{sum(cells_mib)}</memory>
  <vcpu>{len(cells_mib)}</vcpu>
  <os><type arch='x86_64' machine='pc'>hvm</type><kernel>{kernel}</kernel></os>
  <cpu mode='host-passthrough'><numa>{cells}</numa></cpu>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <serial type='file'><source path='/tmp/{name}.serial'/></serial>
    <memballoon model='none'/>
  </devices>
</domain>
"""


def local_share(cell):
    """The probability that an access of the cell's vCPU is local, if it runs everywhere it may."""
    total = sum(cell["bytes"].values())
    here = sum(cell["bytes"].get(node, 0) for node in cell["vcpus"])
    return here / total / len(cell["vcpus"]) if total else 0.0


class Handler(socketserver.StreamRequestHandler):
    """Answers one call: a list of a method and its arguments."""

    def handle(self):
        method, *arguments = json.loads(self.rfile.readline())
        try:
            answer = {"answer": getattr(self.server.host, method)(*arguments)}
        except Exception as error:  # the other side reports it
            answer = {"error": repr(error)}
        self.wfile.write(json.dumps(answer).encode() + b"\n")


class Other:
    """The other side, as if it were this one."""

    def __init__(self, side):
        self.side = side

    def __getattr__(self, method):
        def call(*arguments):
            with socket.create_connection((ADDRESSES[self.side], PORT)) as channel:
                channel.sendall(json.dumps([method, *arguments]).encode() + b"\n")
                answer = json.loads(channel.makefile().readline())
            if "error" in answer:
                raise RuntimeError(f"side {self.side}: {answer['error']}")
            return answer["answer"]

        return call


def drive(hosts, kernel, names, rounds, report):
    """Migrates these virtual machines at once, back and forth, and reports each migration."""
    await_that(lambda: answers(hosts["b"]))
    print("the other side answers", flush=True)
    for name in names:
        hosts["a"].start(name, kernel, FIRST_NODES[name])
        print(f"{name} has started", flush=True)
    for name in names:
        await_that(lambda name=name: (hosts["a"].look(name) or {}).get("passes"))
        print(f"{name} runs on a: {hosts['a'].look(name)}", flush=True)
    for number in range(1, rounds + 1):
        state = STATES[number % len(STATES)]
        here, there = ("a", "b") if number % 2 else ("b", "a")
        for host in hosts.values():
            host.set_daemon("runs" if state == "killed" else state)
        with ThreadPoolExecutor() as pool:
            moves = {name: pool.submit(hosts[here].migrate, name, there) for name in names}
            if state == "killed":
                for host in hosts.values():
                    host.kill_daemon()
        for name, move in moves.items():
            entry = {"round": number, "vm": name, "daemon": state, "to": there, **move.result()}
            if entry["ok"]:
                entry |= arrived(hosts[there], name)
            entry["runs_here"] = hosts[here].look(name) is not None
            report(entry)
        log = hosts[there].hook_log()
        report({"round": number, "hook": log})


def answers(host):
    try:
        return host.hook_log() is not None
    except OSError:
        return False


def arrived(host, name):
    """The facts once the virtual machine has touched all of its memory on the new side."""
    began = host.look(name)
    passes = began["passes"]
    seen = await_that(lambda: (now := host.look(name))["passes"] > passes + 1 and now)
    shares = [local_share(cell) for cell in seen["cells"]]
    return {"shares": shares, "cells": seen["cells"], "starts": seen["starts"]}


def main():
    side, program, hook, kernel, rounds, results, *names = sys.argv[1:]
    host = Host(side, program, hook)
    if side == "b":
        with socketserver.ThreadingTCPServer((ADDRESSES[side], PORT), Handler) as server:
            server.host = host
            server.serve_forever()
    with open(results, "w") as file:

        def report(entry):
            print(json.dumps(entry), file=file, flush=True)
            print(json.dumps(entry), flush=True)

        drive({"a": host, "b": Other("b")}, kernel, names, int(rounds), report)


if __name__ == "__main__":
    main()
