/* Makes one escape attempt: `calls NAME [ARGUMENT...]`.
 *
 * `serve` and `with-address` are not attempts: they set up a server for an attempt to reach.
 *
 * Prints DONE if the attempt succeeds, REFUSED and the error's name if it fails, UNTRIED if the set-up fails.
 * Every attempt is harmless where it succeeds: it opens without writing, passes arguments that change nothing, or
 * acts on its own child. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/mount.h>
#include <linux/perf_event.h>
#include <net/if.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* Plain numbers: <sys/mount.h> and <linux/mount.h> conflict. */
enum { READ_ONLY = 1, REMOUNT = 32, BIND = 4096, DETACH = 2 };

static char **args;
static const char *arg(int at) { return args[at] ? args[at] : ""; }
static long number_arg(int at) { return strtol(arg(at), NULL, 0); }

static int exit_untried(const char *why) {
    printf("UNTRIED %s: %s\n", why, strerrorname_np(errno));
    exit(2);
}

/* Forks a child that sleeps until it is killed: the target of an attempt. */
static pid_t fork_sleeper(void) {
    pid_t child = fork();
    if (child < 0) exit_untried("fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    return child;
}

static long reap_child(pid_t child, long outcome) {
    int error = errno;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    errno = error;
    return outcome;
}

/* Files. */
static long open_read(void) { return open(arg(0), O_RDONLY | O_NOCTTY | O_NONBLOCK); }
static long open_write(void) { return open(arg(0), O_WRONLY | O_APPEND | O_NOCTTY | O_NONBLOCK); }
static long create(void) {
    long file = open(arg(0), O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (file >= 0) unlink(arg(0));
    return file;
}
static long read_byte(void) {
    char byte;
    long file = open_read();
    if (file < 0) return -1;
    long got = read(file, &byte, 1);
    if (got == 0) errno = ENODATA;
    return got == 1 ? 0 : -1;
}
static long make_node(mode_t kind, int major, int minor) {
    long made = mknod("test-node", kind | 0666, makedev(major, minor));
    if (made == 0) unlink("test-node");
    return made;
}
static long make_char(void) { return make_node(S_IFCHR, 1, 3); }
static long make_block(void) { return make_node(S_IFBLK, 7, 0); }
static long chown_root(void) {
    long file = open("chowned", O_WRONLY | O_CREAT, 0600), changed = fchown(file, 0, 0);
    int error = errno;
    unlink("chowned");
    errno = error;
    return changed;
}
static long open_handle(void) {
    char space[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    struct file_handle *handle = (struct file_handle *)space;
    int mount, at = open(arg(0), O_RDONLY | O_DIRECTORY);
    handle->handle_bytes = MAX_HANDLE_SZ;
    if (name_to_handle_at(AT_FDCWD, arg(0), handle, &mount, 0) < 0) return -1;
    return open_by_handle_at(at, handle, O_RDONLY);
}

/* Mounts and namespaces. */
static long mount_tmpfs(void) { return syscall(SYS_mount, "none", arg(0), "tmpfs", 0, NULL); }
static long mount_bind(void) { return syscall(SYS_mount, arg(0), arg(1), NULL, BIND, NULL); }
static long mount_proc(void) { return syscall(SYS_mount, "proc", arg(0), "proc", 0, NULL); }
static long remount(void) { return syscall(SYS_mount, "none", arg(0), NULL, REMOUNT | BIND, NULL); }
static long try_umount(void) { return syscall(SYS_umount2, arg(0), DETACH); }
static long try_pivot_root(void) { return syscall(SYS_pivot_root, ".", "."); }
static long try_chroot(void) { return chroot("/"); }
static long try_fsopen(void) { return syscall(SYS_fsopen, "tmpfs", 0); }
static long clone_tree(void) { return syscall(SYS_open_tree, AT_FDCWD, arg(0), OPEN_TREE_CLONE); }
static long set_mount_attributes(void) {
    struct mount_attr attributes = {.attr_clr = MOUNT_ATTR_RDONLY};
    return syscall(SYS_mount_setattr, AT_FDCWD, arg(0), 0, &attributes, sizeof attributes);
}
static long try_unshare(void) { return unshare(number_arg(0)); }
static long try_clone(void) {
    long child = syscall(SYS_clone, number_arg(0) | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(0);
    return child;
}
static long try_clone3(void) {
    uint64_t arguments[11] = {(uint64_t)number_arg(0), 0, 0, 0, SIGCHLD};
    long child = syscall(SYS_clone3, arguments, 88);
    if (child == 0) _exit(0);
    return child;
}
static long try_setns(void) {
    int space = open(arg(0), O_RDONLY);
    return space < 0 ? -1 : setns(space, 0);
}

/* Other processes. The target is the given pid, or a new child if there is no argument. */
static long target(void) { return args[0] ? number_arg(0) : fork_sleeper(); }
static long reap_target(long pid, long outcome) { return args[0] ? outcome : reap_child((pid_t)pid, outcome); }
static long try_ptrace(void) {
    long pid = target();
    return reap_target(pid, ptrace(PTRACE_SEIZE, (pid_t)pid, NULL, NULL));
}
static long ptrace_me(void) { return ptrace(PTRACE_TRACEME, 0, NULL, NULL); }
static long copy_memory(int write) {
    static char there[16];
    char here[16] = {0};
    long pid = target();
    unsigned long at = (unsigned long)there;
    char maps[64];
    snprintf(maps, sizeof maps, "/proc/%ld/maps", pid);
    FILE *file = fopen(maps, "r");
    if (file) {
        unsigned long first;
        if (!write && fscanf(file, "%lx", &first) == 1) at = first;
        fclose(file);
    }
    struct iovec local = {here, 16}, remote = {(void *)at, 16};
    long moved = write ? process_vm_writev((pid_t)pid, &local, 1, &remote, 1, 0)
                       : process_vm_readv((pid_t)pid, &local, 1, &remote, 1, 0);
    return reap_target(pid, moved);
}
static long vm_read(void) { return copy_memory(0); }
static long vm_write(void) { return copy_memory(1); }
static long open_proc_mem(void) {
    char path[64];
    long pid = target();
    snprintf(path, sizeof path, "/proc/%ld/mem", pid);
    return reap_target(pid, open(path, O_RDWR));
}
static long try_pidfd_getfd(void) {
    long pid = target(), process = syscall(SYS_pidfd_open, pid, 0);
    return reap_target(pid, process < 0 ? -1 : syscall(SYS_pidfd_getfd, process, 0, 0));
}
static long try_kcmp(void) {
    long pid = target();
    return reap_target(pid, syscall(SYS_kcmp, getpid(), pid, 2, 0, 0));
}
static long signal_process(void) {
    long pid = target();
    return reap_target(pid, kill((pid_t)pid, (int)(args[0] ? number_arg(1) : SIGKILL)));
}
static long try_pidfd_open(void) {
    long pid = target();
    return reap_target(pid, syscall(SYS_pidfd_open, pid, 0));
}
static long try_prlimit(void) {
    struct rlimit limit;
    long pid = target();
    return reap_target(pid, prlimit((pid_t)pid, RLIMIT_NOFILE, NULL, &limit));
}

/* Kernel interfaces. Calls that would change the machine get an invalid argument: the kernel's error shows that the
 * call reached it. */
static long io_uring(void) {
    char parameters[120] = {0};
    return syscall(SYS_io_uring_setup, 1, parameters);
}
static long bpf_map(void) {
    union bpf_attr map;
    memset(&map, 0, sizeof map);
    map.map_type = BPF_MAP_TYPE_ARRAY, map.key_size = 4, map.value_size = 4, map.max_entries = 1;
    return syscall(SYS_bpf, BPF_MAP_CREATE, &map, sizeof map);
}
static long perf_event(void) {
    struct perf_event_attr event = {.type = PERF_TYPE_SOFTWARE, .size = sizeof event, .config = PERF_COUNT_SW_CPU_CLOCK};
    return syscall(SYS_perf_event_open, &event, 0, -1, -1, 0);
}
static long user_fault(void) { return syscall(SYS_userfaultfd, O_CLOEXEC); }
static long try_keyctl(void) { return syscall(SYS_keyctl, 0 /* KEYCTL_GET_KEYRING_ID */, -3 /* session keyring */, 1); }
static long try_add_key(void) { return syscall(SYS_add_key, "user", "atoll-test", "x", 1, -2 /* process keyring */); }
static long request_key(void) { return syscall(SYS_request_key, "user", "atoll-test-none", NULL, 0); }
static long kexec(void) { return syscall(SYS_kexec_load, 0, 0, NULL, 0xffffUL); }
static long init_module(void) { return syscall(SYS_init_module, NULL, 0UL, ""); }
static long finit_module(void) { return syscall(SYS_finit_module, -1, "", 0); }
static long delete_module(void) { return syscall(SYS_delete_module, "atoll_test_none", O_NONBLOCK); }
static long try_reboot(void) { return syscall(SYS_reboot, 0, 0, 0, NULL); }
static long try_swapon(void) { return syscall(SYS_swapon, "/nonexistent", 0); }
static long set_clock(void) {
    struct timeval never = {.tv_sec = -1, .tv_usec = -1};
    return syscall(SYS_settimeofday, &never, NULL);
}
static long kernel_log(void) { return syscall(SYS_syslog, 10 /* SYSLOG_ACTION_SIZE_BUFFER */, NULL, 0); }
static long try_acct(void) { return syscall(SYS_acct, "/nonexistent"); }
static long try_quotactl(void) { return syscall(SYS_quotactl, 0x7fffffff, "/nonexistent", 0, NULL); }
static long try_fanotify(void) { return fanotify_init(FAN_CLASS_CONTENT, O_RDONLY); }
static long set_host_name(void) {
    char name[65];
    return gethostname(name, sizeof name) < 0 ? -1 : sethostname(name, strlen(name));
}
static long set_personality(void) { return syscall(SYS_personality, 0x0040000 /* ADDR_NO_RANDOMIZE */); }
#ifdef __x86_64__
static long try_iopl(void) { return syscall(SYS_iopl, 3); }
static long i386_call(void) {
    long answer;
    __asm__ volatile("int $0x80" : "=a"(answer) : "a"(20 /* getpid */) : "memory");
    return answer > 0 ? 0 : -1;
}
static long x32_call(void) { return syscall(0x40000000 | SYS_getpid); }
#endif

/* Terminals. */
static long terminal(unsigned long request, void *argument) {
    int leader, follower;
    if (openpty(&leader, &follower, NULL, NULL, NULL) < 0) exit_untried("openpty");
    return ioctl(follower, request, argument);
}
static long push_input(void) { return terminal(TIOCSTI, "x"); }
static long paste_selection(void) {
    char what = 3;
    return terminal(TIOCLINUX, &what);
}

/* Privilege. */
static long try_setresuid(void) { return setresuid(0, 0, 0); }
static long try_setgroups(void) {
    gid_t groups[1] = {0};
    return syscall(SYS_setgroups, 1, groups);
}
static long try_capset(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {{1 << CAP_NET_ADMIN, 1 << CAP_NET_ADMIN, 0}};
    return syscall(SYS_capset, &header, data);
}
static long effective_root(void) {
    errno = EPERM;
    return geteuid() == 0 ? 0 : -1;
}
static long real_time(void) {
    struct sched_param first = {.sched_priority = 1};
    return sched_setscheduler(0, SCHED_FIFO, &first);
}
static long raise_priority(void) { return setpriority(PRIO_PROCESS, 0, -10); }

/* Resource exhaustion: each attempt takes NUMBER units. */
static long forks(void) {
    long count = number_arg(0), made = 0;
    pid_t *children = calloc((size_t)count, sizeof *children);
    while (made < count && (children[made] = fork()) > 0) made++;
    if (made < count && children[made] == 0) for (;;) pause();
    int error = errno;
    for (long at = 0; at < made; at++) reap_child(children[at], 0);
    errno = error;
    return made == count ? 0 : -1;
}
static long allocate(void) {
    for (long megabytes = number_arg(0); megabytes > 0; megabytes--) {
        char *block = malloc(1 << 20);
        if (!block) return -1;
        memset(block, 1, 1 << 20);
    }
    return 0;
}
static long descriptors(void) {
    for (long left = number_arg(0); left > 0; left--)
        if (dup(0) < 0) return -1;
    return 0;
}
static long fill(void) {
    static char block[1 << 20];
    int file = open(arg(1), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0) return -1;
    memset(block, 1, sizeof block);
    for (long megabytes = number_arg(0); megabytes > 0; megabytes--) {
        long written = write(file, block, sizeof block);
        if (written >= 0 && written < (long)sizeof block) errno = ENOSPC;
        if (written < (long)sizeof block || usleep((useconds_t)number_arg(2)) < 0) return -1;
    }
    return 0;
}
static long many_files(void) {
    char path[256];
    for (long at = 0; at < number_arg(0); at++) {
        snprintf(path, sizeof path, "%s/%ld", arg(1), at);
        int file = open(path, O_WRONLY | O_CREAT, 0600);
        /* Keep the newest file open, as a program that is still writing does. */
        if (file < 0 || dup2(file, 100) < 0 || close(file) < 0 || usleep((useconds_t)number_arg(2)) < 0) return -1;
    }
    return 0;
}

#include "reach.h"
#include "shared_limits.h"

static const struct {
    const char *name;
    long (*attempt)(void);
} attempts[] = {
    {"open-read", open_read}, {"open-write", open_write}, {"create", create}, {"read-byte", read_byte},
    {"make-char", make_char}, {"make-block", make_block}, {"chown-root", chown_root}, {"open-by-handle", open_handle},
    {"mount-tmpfs", mount_tmpfs}, {"mount-bind", mount_bind}, {"mount-proc", mount_proc}, {"remount", remount},
    {"umount", try_umount}, {"pivot-root", try_pivot_root}, {"chroot", try_chroot}, {"fsopen", try_fsopen},
    {"open-tree", clone_tree}, {"mount-setattr", set_mount_attributes}, {"unshare", try_unshare}, {"clone", try_clone},
    {"clone3", try_clone3}, {"setns", try_setns}, {"ptrace", try_ptrace}, {"ptrace-me", ptrace_me}, {"vm-read", vm_read},
    {"vm-write", vm_write}, {"proc-mem", open_proc_mem}, {"pidfd-getfd", try_pidfd_getfd},
    {"kcmp", try_kcmp}, {"signal", signal_process}, {"pidfd-open", try_pidfd_open},
    {"prlimit", try_prlimit}, {"io-uring", io_uring}, {"bpf", bpf_map}, {"perf-event", perf_event}, {"userfaultfd", user_fault},
    {"keyctl", try_keyctl}, {"add-key", try_add_key}, {"request-key", request_key}, {"kexec", kexec},
    {"init-module", init_module}, {"finit-module", finit_module}, {"delete-module", delete_module},
    {"reboot", try_reboot}, {"swapon", try_swapon}, {"settimeofday", set_clock}, {"syslog", kernel_log},
    {"acct", try_acct}, {"quotactl", try_quotactl}, {"fanotify", try_fanotify}, {"sethostname", set_host_name}, {"personality", set_personality},
#ifdef __x86_64__
    {"iopl", try_iopl}, {"i386-call", i386_call}, {"x32-call", x32_call},
#endif
    {"tiocsti", push_input}, {"tioclinux", paste_selection}, {"setresuid", try_setresuid},
    {"setgroups", try_setgroups}, {"capset", try_capset}, {"effective-root", effective_root},
    {"real-time", real_time}, {"raise-priority", raise_priority}, {"socket", open_socket},
    {"connect", connect_to}, {"datagram", datagram_to}, {"connect-path", connect_path},
    {"connect-abstract", connect_abstract}, {"forks", forks}, {"allocate", allocate}, {"descriptors", descriptors},
    {"fill", fill}, {"many-files", many_files}, {"aio-contexts", aio_contexts},
    {"inotify-instances", inotify_instances}, {"inotify-watches", inotify_watches},
    {"pending-signals", pending_signals}, {"message-queues", message_queues}, {"terminals", terminals},
    {"tcp-megabytes", tcp_megabytes},
};

/* Runs the attempt in a child, so that a fatal signal counts as a refusal. */
static int run_attempt(long (*attempt)(void)) {
    pid_t child = fork();
    if (child < 0) exit_untried("fork");
    if (child == 0) {
        errno = 0;
        long outcome = attempt();
        if (outcome >= 0) printf("DONE\n");
        else printf("REFUSED %s\n", strerrorname_np(errno));
        fflush(stdout);
        _exit(outcome < 0);
    }
    int status;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) {
        printf("REFUSED SIG%s\n", sigabbrev_np(WTERMSIG(status)));
        return 1;
    }
    return WEXITSTATUS(status);
}

int main(int count, char **arguments) {
    if (count < 2) return 2;
    args = arguments + 2;
    if (strcmp(arguments[1], "with-address") == 0) return with_address();
    if (strcmp(arguments[1], "serve") == 0) return serve();
    for (size_t at = 0; at < sizeof attempts / sizeof *attempts; at++)
        if (strcmp(arguments[1], attempts[at].name) == 0) return run_attempt(attempts[at].attempt);
    printf("UNTRIED no attempt %s\n", arguments[1]);
    return 2;
}
