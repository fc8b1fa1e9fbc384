/* One attempt at what no sandbox allows: `calls NAME [ARGUMENT...]`.
 *
 * (`serve` and `with-address` are no attempts: they set up somebody to be reached.)
 *
 * Says DONE when it got through, REFUSED and the error's name when it did not, UNTRIED when it could not be tried.
 * Every attempt is harmless where it succeeds: it opens without writing, asks with arguments that change nothing, or
 * happens to a child of its own. */
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

/* Plain numbers, because <sys/mount.h> and <linux/mount.h> do not go together. */
enum { READ_ONLY = 1, REMOUNT = 32, BIND = 4096, DETACH = 2 };

static char **words;
static const char *word(int at) { return words[at] ? words[at] : ""; }
static long number(int at) { return strtol(word(at), NULL, 0); }

static int untried(const char *why) {
    printf("UNTRIED %s: %s\n", why, strerrorname_np(errno));
    exit(2);
}

/* A child that waits to have something done to it. */
static pid_t sleeper(void) {
    pid_t child = fork();
    if (child < 0) untried("fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    return child;
}

static long after(pid_t child, long outcome) {
    int error = errno;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    errno = error;
    return outcome;
}

/* Files. */
static long open_read(void) { return open(word(0), O_RDONLY | O_NOCTTY | O_NONBLOCK); }
static long open_write(void) { return open(word(0), O_WRONLY | O_APPEND | O_NOCTTY | O_NONBLOCK); }
static long create(void) {
    long file = open(word(0), O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (file >= 0) unlink(word(0));
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
static long node(mode_t kind, int major, int minor) {
    long made = mknod("made-node", kind | 0666, makedev(major, minor));
    if (made == 0) unlink("made-node");
    return made;
}
static long make_char(void) { return node(S_IFCHR, 1, 3); }
static long make_block(void) { return node(S_IFBLK, 7, 0); }
static long give_away(void) {
    long file = open("given", O_WRONLY | O_CREAT, 0600), given = fchown(file, 0, 0);
    int error = errno;
    unlink("given");
    errno = error;
    return given;
}
static long by_handle(void) {
    char space[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    struct file_handle *handle = (struct file_handle *)space;
    int mount, at = open(word(0), O_RDONLY | O_DIRECTORY);
    handle->handle_bytes = MAX_HANDLE_SZ;
    if (name_to_handle_at(AT_FDCWD, word(0), handle, &mount, 0) < 0) return -1;
    return open_by_handle_at(at, handle, O_RDONLY);
}

/* Mounts and namespaces. */
static long mount_memory(void) { return syscall(SYS_mount, "none", word(0), "tmpfs", 0, NULL); }
static long mount_bind(void) { return syscall(SYS_mount, word(0), word(1), NULL, BIND, NULL); }
static long mount_proc(void) { return syscall(SYS_mount, "proc", word(0), "proc", 0, NULL); }
static long remount(void) { return syscall(SYS_mount, "none", word(0), NULL, REMOUNT | BIND, NULL); }
static long unmount(void) { return syscall(SYS_umount2, word(0), DETACH); }
static long pivot(void) { return syscall(SYS_pivot_root, ".", "."); }
static long change_root(void) { return chroot("/"); }
static long open_system(void) { return syscall(SYS_fsopen, "tmpfs", 0); }
static long clone_tree(void) { return syscall(SYS_open_tree, AT_FDCWD, word(0), OPEN_TREE_CLONE); }
static long set_attributes(void) {
    struct mount_attr attributes = {.attr_clr = MOUNT_ATTR_RDONLY};
    return syscall(SYS_mount_setattr, AT_FDCWD, word(0), 0, &attributes, sizeof attributes);
}
static long leave(void) { return unshare(number(0)); }
static long clone_into(void) {
    long child = syscall(SYS_clone, number(0) | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(0);
    return child;
}
static long clone_new(void) {
    uint64_t arguments[11] = {(uint64_t)number(0), 0, 0, 0, SIGCHLD};
    long child = syscall(SYS_clone3, arguments, 88);
    if (child == 0) _exit(0);
    return child;
}
static long join(void) {
    int space = open(word(0), O_RDONLY);
    return space < 0 ? -1 : setns(space, 0);
}

/* Other processes: of a child without arguments, else of the number given. */
static long target(void) { return words[0] ? number(0) : sleeper(); }
static long done_with(long pid, long outcome) { return words[0] ? outcome : after((pid_t)pid, outcome); }
static long trace(void) {
    long pid = target();
    return done_with(pid, ptrace(PTRACE_SEIZE, (pid_t)pid, NULL, NULL));
}
static long trace_me(void) { return ptrace(PTRACE_TRACEME, 0, NULL, NULL); }
static long vm(int write) {
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
    return done_with(pid, moved);
}
static long vm_read(void) { return vm(0); }
static long vm_write(void) { return vm(1); }
static long memory_file(void) {
    char path[64];
    long pid = target();
    snprintf(path, sizeof path, "/proc/%ld/mem", pid);
    return done_with(pid, open(path, O_RDWR));
}
static long take_descriptor(void) {
    long pid = target(), process = syscall(SYS_pidfd_open, pid, 0);
    return done_with(pid, process < 0 ? -1 : syscall(SYS_pidfd_getfd, process, 0, 0));
}
static long compare(void) {
    long pid = target();
    return done_with(pid, syscall(SYS_kcmp, getpid(), pid, 2, 0, 0));
}
static long signal_process(void) {
    long pid = target();
    return done_with(pid, kill((pid_t)pid, (int)(words[0] ? number(1) : SIGKILL)));
}
static long descriptor_of(void) {
    long pid = target();
    return done_with(pid, syscall(SYS_pidfd_open, pid, 0));
}
static long limit_process(void) {
    struct rlimit limit;
    long pid = target();
    return done_with(pid, prlimit((pid_t)pid, RLIMIT_NOFILE, NULL, &limit));
}

/* The kernel's own machinery. Where nothing may be changed, an argument that it refuses shows that it was asked. */
static long ring(void) {
    char parameters[120] = {0};
    return syscall(SYS_io_uring_setup, 1, parameters);
}
static long bpf_map(void) {
    union bpf_attr map;
    memset(&map, 0, sizeof map);
    map.map_type = BPF_MAP_TYPE_ARRAY, map.key_size = 4, map.value_size = 4, map.max_entries = 1;
    return syscall(SYS_bpf, BPF_MAP_CREATE, &map, sizeof map);
}
static long perf(void) {
    struct perf_event_attr event = {.type = PERF_TYPE_SOFTWARE, .size = sizeof event, .config = PERF_COUNT_SW_CPU_CLOCK};
    return syscall(SYS_perf_event_open, &event, 0, -1, -1, 0);
}
static long fault(void) { return syscall(SYS_userfaultfd, O_CLOEXEC); }
static long key_ring(void) { return syscall(SYS_keyctl, 0 /* the ring's number */, -3 /* of the session */, 1); }
static long key_add(void) { return syscall(SYS_add_key, "user", "atoll-test", "x", 1, -2 /* of this process */); }
static long key_ask(void) { return syscall(SYS_request_key, "user", "atoll-test-none", NULL, 0); }
static long kexec(void) { return syscall(SYS_kexec_load, 0, 0, NULL, 0xffffUL); }
static long module_load(void) { return syscall(SYS_init_module, NULL, 0UL, ""); }
static long module_file(void) { return syscall(SYS_finit_module, -1, "", 0); }
static long module_remove(void) { return syscall(SYS_delete_module, "atoll_test_none", O_NONBLOCK); }
static long restart(void) { return syscall(SYS_reboot, 0, 0, 0, NULL); }
static long swap(void) { return syscall(SYS_swapon, "/nonexistent", 0); }
static long set_clock(void) {
    struct timeval never = {.tv_sec = -1, .tv_usec = -1};
    return syscall(SYS_settimeofday, &never, NULL);
}
static long kernel_log(void) { return syscall(SYS_syslog, 10 /* its size */, NULL, 0); }
static long account(void) { return syscall(SYS_acct, "/nonexistent"); }
static long quota(void) { return syscall(SYS_quotactl, 0x7fffffff, "/nonexistent", 0, NULL); }
static long watch_all(void) { return fanotify_init(FAN_CLASS_CONTENT, O_RDONLY); }
static long host_name(void) {
    char name[65];
    return gethostname(name, sizeof name) < 0 ? -1 : sethostname(name, strlen(name));
}
static long persona(void) { return syscall(SYS_personality, 0x0040000 /* no random addresses */); }
#ifdef __x86_64__
static long ports(void) { return syscall(SYS_iopl, 3); }
static long old_calls(void) {
    long answer;
    __asm__ volatile("int $0x80" : "=a"(answer) : "a"(20 /* getpid */) : "memory");
    return answer > 0 ? 0 : -1;
}
static long other_calls(void) { return syscall(0x40000000 | SYS_getpid); }
#endif

/* Terminals. */
static long terminal(unsigned long request, void *argument) {
    int leader, follower;
    if (openpty(&leader, &follower, NULL, NULL, NULL) < 0) untried("openpty");
    return ioctl(follower, request, argument);
}
static long type_into(void) { return terminal(TIOCSTI, "x"); }
static long paste_into(void) {
    char what = 3;
    return terminal(TIOCLINUX, &what);
}

/* Privilege. */
static long become_root(void) { return setresuid(0, 0, 0); }
static long join_groups(void) {
    gid_t groups[1] = {0};
    return syscall(SYS_setgroups, 1, groups);
}
static long raise_capability(void) {
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
static long hurry(void) { return setpriority(PRIO_PROCESS, 0, -10); }

/* Taking too much: NUMBER of it, all at once. */
static long forks(void) {
    long count = number(0), made = 0;
    pid_t *children = calloc((size_t)count, sizeof *children);
    while (made < count && (children[made] = fork()) > 0) made++;
    if (made < count && children[made] == 0) for (;;) pause();
    int error = errno;
    for (long at = 0; at < made; at++) after(children[at], 0);
    errno = error;
    return made == count ? 0 : -1;
}
static long allocate(void) {
    for (long megabytes = number(0); megabytes > 0; megabytes--) {
        char *some = malloc(1 << 20);
        if (!some) return -1;
        memset(some, 1, 1 << 20);
    }
    return 0;
}
static long descriptors(void) {
    for (long left = number(0); left > 0; left--)
        if (dup(0) < 0) return -1;
    return 0;
}
static long fill(void) {
    static char some[1 << 20];
    int file = open(word(1), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0) return -1;
    memset(some, 1, sizeof some);
    for (long megabytes = number(0); megabytes > 0; megabytes--) {
        long written = write(file, some, sizeof some);
        if (written >= 0 && written < (long)sizeof some) errno = ENOSPC;
        if (written < (long)sizeof some || usleep((useconds_t)number(2)) < 0) return -1;
    }
    return 0;
}
static long many_files(void) {
    char path[256];
    for (long at = 0; at < number(0); at++) {
        snprintf(path, sizeof path, "%s/%ld", word(1), at);
        int file = open(path, O_WRONLY | O_CREAT, 0600);
        /* The last one stays open, as that of whoever is still at it. */
        if (file < 0 || dup2(file, 100) < 0 || close(file) < 0 || usleep((useconds_t)number(2)) < 0) return -1;
    }
    return 0;
}

#include "reach.h"

static const struct {
    const char *name;
    long (*attempt)(void);
} attempts[] = {
    {"open-read", open_read}, {"open-write", open_write}, {"create", create}, {"read-byte", read_byte},
    {"make-char", make_char}, {"make-block", make_block}, {"give-away", give_away}, {"by-handle", by_handle},
    {"mount-memory", mount_memory}, {"mount-bind", mount_bind}, {"mount-proc", mount_proc}, {"remount", remount},
    {"unmount", unmount}, {"pivot", pivot}, {"change-root", change_root}, {"open-system", open_system},
    {"clone-tree", clone_tree}, {"set-attributes", set_attributes}, {"leave", leave}, {"clone-into", clone_into},
    {"clone-new", clone_new}, {"join", join}, {"trace", trace}, {"trace-me", trace_me}, {"vm-read", vm_read},
    {"vm-write", vm_write}, {"memory-file", memory_file}, {"take-descriptor", take_descriptor},
    {"compare", compare}, {"signal", signal_process}, {"descriptor-of", descriptor_of},
    {"limit-process", limit_process}, {"ring", ring}, {"bpf", bpf_map}, {"perf", perf}, {"fault", fault},
    {"key-ring", key_ring}, {"key-add", key_add}, {"key-ask", key_ask}, {"kexec", kexec},
    {"module-load", module_load}, {"module-file", module_file}, {"module-remove", module_remove},
    {"restart", restart}, {"swap", swap}, {"set-clock", set_clock}, {"kernel-log", kernel_log},
    {"account", account}, {"quota", quota}, {"watch-all", watch_all}, {"host-name", host_name}, {"persona", persona},
#ifdef __x86_64__
    {"ports", ports}, {"old-calls", old_calls}, {"other-calls", other_calls},
#endif
    {"type-into", type_into}, {"paste-into", paste_into}, {"become-root", become_root},
    {"join-groups", join_groups}, {"raise-capability", raise_capability}, {"effective-root", effective_root},
    {"real-time", real_time}, {"hurry", hurry}, {"socket", open_socket},
    {"connect", connect_to}, {"datagram", datagram_to}, {"connect-path", connect_path},
    {"connect-abstract", connect_abstract}, {"forks", forks}, {"allocate", allocate}, {"descriptors", descriptors},
    {"fill", fill}, {"many-files", many_files},
};

/* In a child, so that being killed for it is an answer too. */
static int tried(long (*attempt)(void)) {
    pid_t child = fork();
    if (child < 0) untried("fork");
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
    words = arguments + 2;
    if (strcmp(arguments[1], "with-address") == 0) return with_address();
    if (strcmp(arguments[1], "serve") == 0) return serve();
    for (size_t at = 0; at < sizeof attempts / sizeof *attempts; at++)
        if (strcmp(arguments[1], attempts[at].name) == 0) return tried(attempts[at].attempt);
    printf("UNTRIED no attempt %s\n", arguments[1]);
    return 2;
}
