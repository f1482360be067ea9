"""What processes and the whole machine use: processor time, wake-ups, reads and writes.

*Processes*: CPU time is the kernel's sum of run times in nanoseconds (`CLOCK_PROCESS_CPUTIME_ID` of the process,
the sum that getrusage(2) splits by ticks). Wake-ups are voluntary context switches of all its threads.

*The machine*: a processor is busy while it is not in an idle state. The kernel counts idle states in microseconds
(`/sys/devices/system/cpu/cpu*/cpuidle`), and adds to them when a state is left; so `look` runs on each
processor once before it reads. Interrupts, softirqs and the way in and out of idleness count as busy. Without cpuidle the
figure is that of `/proc/stat`, in ticks of 10 ms. Time that the hypervisor took (`steal`) does not count.

*A load*: what the machine used without the run time of processes that are not of the load. So threads of the kernel, interrupts
and idleness that is left and entered count as the load's. The run time of all tasks is that of the root of the cgroup
controller cpuacct. Without it, processes that are not of the load count if they are there at both looks.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

# `CPUCLOCK_SCHED` of the kernel's `posix-timers.h`: all threads of a process, also those that have ended.
CPUCLOCK_SCHED = 2
CPUS = sorted(os.sched_getaffinity(0))
IDLE_TIMES = sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpuidle/state*/time"))
ALL_TASKS = Path("/sys/fs/cgroup/cpuacct/cpuacct.usage")
KTHREADD = 2


def wake_every_processor():
    for cpu in CPUS:
        os.sched_setaffinity(0, {cpu})
    os.sched_setaffinity(0, CPUS)


def machine_cpu_s():
    """Seconds that processors were busy, all together, since some time in the past: a difference of two has a meaning."""
    with open("/proc/stat") as stat:
        fields = [int(word) / os.sysconf("SC_CLK_TCK") for word in stat.readline().split()[1:9]]
    user, nice, system, _, _, irq, softirq, steal = fields
    if not IDLE_TIMES:
        return user + nice + system + irq + softirq
    wake_every_processor()
    idle = sum(int(path.read_text()) for path in IDLE_TIMES) / 1e6
    return time.monotonic() * os.cpu_count() - idle - steal


def process_cpu_s(pid):
    """CPU time of a process; 0 if it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)
    except OSError:
        return 0.0


def is_of_users(pid):
    """Whether it is a process, and no thread of the kernel."""
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return False
    return KTHREADD not in (pid, parent)


def wakeups(pid):
    """Voluntary context switches of the threads that a process has."""
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/status"):
        try:
            line = next(line for line in path.read_text().splitlines() if line.startswith("voluntary_"))
        except (OSError, StopIteration):
            continue
        total += int(line.split()[1])
    return total


def reads_and_writes(pid):
    """System calls of a process that read or wrote a descriptor; 0 where the kernel does not count them."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("sysc"))


def cpu_by_pid():
    """CPU time of all processes, and of all threads of the kernel."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    users, kernel = {}, {}
    for pid in pids:
        (users if is_of_users(pid) else kernel)[pid] = process_cpu_s(pid)
    return users, kernel


def all_tasks_s():
    """Run time of all tasks, also of those that have ended; None without the controller cpuacct."""
    return int(ALL_TASKS.read_text()) / 1e9 if ALL_TASKS.exists() else None


def growth(now, before):
    """What those that are in both have more, all together."""
    return sum(now[pid] - before[pid] for pid in now if pid in before)


@dataclass
class Usage:
    """Between two looks: `load_s` is what the machine used for the load, `foreign_s` what other processes used; the
    rest is of the first process of the load."""

    seconds: float
    load_s: float
    foreign_s: float
    cpu_s: float
    wakeups: int
    calls: int


class Meter:
    """Looks at the machine now; `stop` tells what was used since. `load` are processes of the load (`network.Process`, or what
    has its `pid`, `pids` and `used_cpu_s`); those that start later are added with `add`."""

    def __init__(self, load=()):
        self.load = {process: process.used_cpu_s() for process in load}
        self.first = self.first_now()
        self.users, self.kernel = cpu_by_pid()
        self.tasks = all_tasks_s()
        self.machine, self.start = machine_cpu_s(), time.monotonic()

    def add(self, *processes):
        self.load.update((process, 0.0) for process in processes)

    def first_now(self):
        pid = next((process.pid for process in self.load), None)
        return (wakeups(pid), reads_and_writes(pid)) if pid else (0, 0)

    def foreign_s(self, users, kernel, own_s):
        """What processes used that are not of the load, which used `own_s`."""
        tasks = all_tasks_s()
        if tasks is None:
            of_load = {pid for process in self.load for pid in process.pids()}
            return growth({pid: used for pid, used in users.items() if pid not in of_load}, self.users)
        of_kernel = sum(now - self.kernel.get(pid, 0.0) for pid, now in kernel.items())
        return max(0.0, tasks - self.tasks - of_kernel - own_s)

    def stop(self):
        seconds, machine = time.monotonic() - self.start, machine_cpu_s() - self.machine
        users, kernel = cpu_by_pid()
        own = [process.used_cpu_s() - before for process, before in self.load.items()]
        foreign = self.foreign_s(users, kernel, sum(own))
        first = [now - before for now, before in zip(self.first_now(), self.first)]
        return Usage(seconds, machine - foreign, foreign, own[0] if own else 0.0, *first)
