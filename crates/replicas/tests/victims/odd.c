/* A process in a state that its argument names. It prints "ready" and waits for the end of its
 * standard input. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <linux/filter.h>
#include <unistd.h>

uint32_t mix(uint32_t x);

static void ready(void)
{
    if (write(1, "ready\n", 6) != 6)
        exit(2);
}

static int wait_for_end(void *unused)
{
    (void)unused;
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    return 0;
}

static char stack[65536];
static volatile int spinning = 1;

static void on_end(int signal)
{
    (void)signal;
    spinning = 0;
}

int main(int count, char **arguments)
{
    const char *state = count > 1 ? arguments[1] : "plain";
    uint32_t before = mix(1);
    if (!strcmp(state, "seccomp")) {
        /* Kills the process for openat, mmap and mremap. */
        struct sock_filter filter[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 3, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 2, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 1, 0),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        };
        struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
            return 2;
    } else if (!strcmp(state, "vfork")) {
        if (vfork() == 0) {
            ready();
            wait_for_end(NULL);
            _exit(0);
        }
        return 0;
    } else if (!strcmp(state, "clone-vm")) {
        int child = clone(wait_for_end, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
        ready();
        waitpid(child, NULL, 0);
        return 0;
    } else if (!strcmp(state, "personality")) {
        personality(READ_IMPLIES_EXEC);
    } else if (!strcmp(state, "written")) {
        /* As a debugger does: a private page within the text, with its old content. */
        char *page = (char *)((uintptr_t)mix & -4096);
        if (mprotect(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC))
            return 2;
        *(volatile char *)page = *(volatile char *)page;
        if (mprotect(page, 4096, PROT_READ | PROT_EXEC))
            return 2;
    } else if (!strcmp(state, "locked")) {
        mlockall(MCL_CURRENT);
    } else if (!strcmp(state, "advised")) {
        char *page = (char *)((uintptr_t)mix & -4096);
        madvise(page, 4096, MADV_DONTDUMP);
    } else if (!strcmp(state, "spinning")) {
        signal(SIGTERM, on_end);
        ready();
        while (spinning)
            if (mix(1) != before)
                abort();
        return 0;
    } else if (!strcmp(state, "sigtrap")) {
        signal(SIGTRAP, on_end);
        ready();
        wait_for_end(NULL);
        raise(SIGTRAP);
        return spinning;
    } else if (!strcmp(state, "open")) {
        /* Three descriptors of the file: at an offset, its duplicate, and one for O_CLOEXEC. */
        int file = open(arguments[2], O_RDONLY);
        dup2(file, 21);
        dup2(file, 22);
        int other = open(arguments[2], O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        dup3(other, 23, O_CLOEXEC);
        close(other);
        close(file);
        lseek(21, 1000, SEEK_SET);
    }
    ready();
    wait_for_end(NULL);
    return mix(1) != before;
}
