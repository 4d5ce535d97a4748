/*
 * run.c - a runner for the programs in stress/ and model/, and what they all need
 */
#define _GNU_SOURCE
#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "run.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RUN_TSAN 1
#endif
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define RUN_SLOW 10
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define RUN_TSAN 1
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#undef RUN_SLOW
#define RUN_SLOW 10
#endif
#ifndef RUN_SLOW
#define RUN_SLOW 1
#endif
#ifndef RUN_TSAN
#define RUN_TSAN 0
#endif

#if RUN_TSAN
/* It sleeps for a second at each exit, and here every case is a process. */
const char *__tsan_default_options(void);

const char *__tsan_default_options(void)
{
	return "atexit_sleep_ms=0";
}
#endif

enum { EXIT_SKIPPED = 77 };

static bool opt_long;
static bool opt_no_fork;
static char case_dir[PATH_MAX];         /* this case's directory, made when it is asked for */

bool t_run_is_long(void)
{
	return opt_long;
}

unsigned t_run_slow(void)
{
	return RUN_SLOW;
}

bool t_run_is_tsan(void)
{
	return RUN_TSAN;
}

void t_run_skip(const char *why)
{
	printf("skipped: %s\n", why);
	fflush(stdout);
	exit(EXIT_SKIPPED);
}

void t_run_fail(const char *file, int line, const char *format, ...)
{
	va_list ap;

	flockfile(stderr);
	fprintf(stderr, "%s:%d: ", file, line);
	va_start(ap, format);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fprintf(stderr, "\n");
	fflush(stderr);
	_exit(1);
}

uint64_t t_run_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

void t_run_nap(void)
{
	struct timespec ts = { 0, 200000 };

	nanosleep(&ts, NULL);
}

static void name_case_dir(unsigned nr)
{
	snprintf(case_dir, sizeof(case_dir), "%s/case-%d-%u", t_dir(), (int)getpid(), nr);
}

const char *t_run_dir(void)
{
	if (!case_dir[0])
		name_case_dir(0);
	if (mkdir(case_dir, 0700) != 0 && errno != EEXIST)
		t_run_fail(__FILE__, __LINE__, "mkdir %s: %s", case_dir, strerror(errno));
	return case_dir;
}

void t_run_path(char *out, size_t len, const char *name)
{
	snprintf(out, len, "%s/%s", t_run_dir(), name);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	remove(path);
	return 0;
}

void t_run_remove(const char *dir)
{
	if (access(dir, F_OK) == 0)
		nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void t_run_options(int *argc, char **argv)
{
	const char *env = getenv("IOMAP_TEST_LONG");
	int kept = 1;

	opt_long = env && *env;
	for (int i = 1; i < *argc; i++) {
		if (strcmp(argv[i], "--long") == 0)
			opt_long = true;
		else if (strcmp(argv[i], "--no-fork") == 0)
			opt_no_fork = true;
		else
			argv[kept++] = argv[i];
	}
	*argc = kept;
	argv[kept] = NULL;
	setvbuf(stdout, NULL, _IOLBF, 0);
}

static bool is_wanted(const char *name, int argc, char **argv)
{
	if (argc < 2)
		return true;
	for (int i = 1; i < argc; i++)
		if (strstr(name, argv[i]))
			return true;
	return false;
}

/* Waits for a case; kills it at its deadline. Returns its wait status, with *late set. */
static int reap(pid_t pid, unsigned seconds, bool *late)
{
	uint64_t end = t_run_now_ns() + (uint64_t)seconds * 1000000000 * t_run_slow();
	int status = 0;

	*late = false;
	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (t_run_now_ns() > end && !*late) {
			*late = true;
			kill(pid, SIGABRT);     /* a core, where somebody wants one */
			end += 5000000000ULL;
		} else if (t_run_now_ns() > end) {
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
			break;
		}
		t_run_nap();
	}
	return status;
}

int t_run_main(int argc, char **argv, const struct t_run_case *cases, unsigned nr)
{
	unsigned passed = 0, failed = 0, skipped = 0;

	t_run_options(&argc, argv);
	if (argc > 1 && strcmp(argv[1], "--list") == 0) {
		for (unsigned i = 0; i < nr; i++)
			printf("%s\n", cases[i].name);
		return 0;
	}
	for (unsigned i = 0; i < nr; i++) {
		uint64_t start = t_run_now_ns();
		unsigned seconds = cases[i].seconds ? cases[i].seconds : 30;
		bool late;
		int status;
		pid_t pid;

		if (!is_wanted(cases[i].name, argc, argv))
			continue;
		name_case_dir(i);
		if (opt_long)
			seconds *= 20;
		fflush(NULL);
		if (opt_no_fork) {
			printf("%s\n", cases[i].name);
			cases[i].fn();
			t_run_remove(case_dir);
			passed++;
			continue;
		}
		pid = fork();
		if (pid == 0) {
			cases[i].fn();
			exit(0);
		}
		if (pid < 0) {
			perror("fork");
			return 1;
		}
		status = reap(pid, seconds, &late);
		t_run_remove(case_dir);
		if (!late && WIFEXITED(status) && WEXITSTATUS(status) == 0) {
			printf("ok      %-64s %6.2f s\n", cases[i].name, (double)(t_run_now_ns() - start) / 1e9);
			passed++;
		} else if (!late && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIPPED) {
			printf("skipped %s\n", cases[i].name);
			skipped++;
		} else {
			if (late)
				printf("FAILED  %s: not finished after %u s\n", cases[i].name, seconds * t_run_slow());
			else if (WIFSIGNALED(status))
				printf("FAILED  %s: %s\n", cases[i].name, strsignal(WTERMSIG(status)));
			else
				printf("FAILED  %s\n", cases[i].name);
			failed++;
		}
	}
	printf("%u passed, %u failed", passed, failed);
	if (skipped)
		printf(", %u skipped", skipped);
	printf("\n");
	return failed != 0;
}

ssize_t t_run_bytes_differ(const void *buf, size_t len, int byte)
{
	const unsigned char *in = buf;

	for (size_t i = 0; i < len; i++)
		if (in[i] != (unsigned char)byte)
			return (ssize_t)i;
	return -1;
}
