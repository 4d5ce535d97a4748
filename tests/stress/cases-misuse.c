/*
 * cases-misuse.c - bugs that others reported, as short sequences with the exact right result: calls that must not be made
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "rig.h"

#ifdef IOMAP_DEBUG
static unsigned char buf[4096];

static void write_it(struct iomap_file *file) { iomap_pwrite(file, buf, sizeof(buf), 0); }
static void read_it(struct iomap_file *file) { iomap_pread(file, buf, sizeof(buf), 0); }
static void sync_it(struct iomap_file *file) { iomap_fsync(file); }
static void close_it(struct iomap_file *file) { iomap_close(file); }
static void cut_it(struct iomap_file *file) { iomap_ftruncate(file, 0); }
static void advise_it(struct iomap_file *file) { iomap_fadvise(file, 0, 0, POSIX_FADV_DONTNEED); }
static void ask_it(struct iomap_file *file) { iomap_size(file); }

static void stat_it(struct iomap_file *file)
{
	struct iomap_file_stat st;

	iomap_file_stat(file, &st, sizeof(st));
}

/* In a process of its own: closes a handle, opens @others more files, and makes the call. What it says goes to @says. */
static void use_after_close(void (*call)(struct iomap_file *), unsigned others, int says)
{
	const struct rlimit no_core = { 0, 0 };
	struct iomap_file *closed, *more;
	char name[32];
	struct t_rig rig;

	setrlimit(RLIMIT_CORE, &no_core);
	dup2(says, STDERR_FILENO);
	signal(SIGABRT, SIG_DFL);
	t_rig_init(&rig);
	t_rig_up(&rig);
	closed = t_rig_handle(&rig, O_RDWR);
	memset(buf, 'B', sizeof(buf));
	snprintf(name, sizeof(name), "%p\n", (void *)closed);
	if (write(says, name, strlen(name)) < 0)
		_exit(1);
	CHECK_EQ(iomap_close(closed), 0);
	for (unsigned i = 0; i < others; i++) {
		more = t_rig_handle(&rig, O_RDWR);
		CHECK(more != closed);
		if (i % 2)
			CHECK_EQ(iomap_close(more), 0);
	}
	call(closed);
	_exit(0);
}
#endif

/* C87 */
static void a_closed_handle_is_named_when_it_is_used(void)
{
#ifdef IOMAP_DEBUG
	static void (*const calls[])(struct iomap_file *) = {
		write_it, read_it, sync_it, close_it, cut_it, advise_it, ask_it, stat_it,
	};

	for (unsigned i = 0; i < 8; i++) {
		char said[4096] = "", *end, *message;
		size_t len = 0;
		int fd[2], status;
		ssize_t n;
		pid_t pid;

		CHECK_EQ(pipe(fd), 0);
		pid = fork();
		CHECK(pid >= 0);
		if (pid == 0)
			use_after_close(calls[i], i % 4 * 10, fd[1]);
		close(fd[1]);
		while (len < sizeof(said) - 1 && (n = read(fd[0], said + len, sizeof(said) - 1 - len)) > 0)
			len += (size_t)n;
		close(fd[0]);
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		CHECK_MSG(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "call %u: status %#x, it said: %s", i, (unsigned)status,
			  said);
		end = strchr(said, '\n');
		CHECK(end);
		*end = '\0';
		message = strstr(end + 1, said);
		CHECK_MSG(message && strstr(end + 1, "is used after iomap_close()"), "call %u: handle %s, it said: %s", i, said, end + 1);
	}
#else
	t_run_skip("only checked builds look");
#endif
}

static const struct t_run_case cases[] = {
	T_RUN(a_closed_handle_is_named_when_it_is_used),
};

int main(int argc, char **argv)
{
	return t_run_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
