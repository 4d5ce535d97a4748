/*
 * replay-main.c - carries out inputs that a fuzzer found, without the fuzzer
 *
 * usage: TARGET [FILE or DIRECTORY …]
 * Without names it takes all of tests/fuzz/corpus/TARGET. Every input is carried out in a process of its own, so that
 * a crash, a failed check or a hang is one failed input. The last line is "N passed, N failed".
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "fuzz.h"
#include "run.h"

enum { SECONDS = 20 };          /* for one input; multiplied by t_run_slow() */

static unsigned passed, failed;

static void result(const char *path, const char *why)
{
	*(why ? &failed : &passed) += 1;
	printf("%s %s%s%s\n", why ? "FAILED" : "ok", path, why ? ": " : "", why ? why : "");
}

/* The whole file, in memory of exactly its size, so that a sanitizer sees who reads past it. */
static uint8_t *read_all(const char *path, size_t *size)
{
	FILE *file = fopen(path, "rb");
	struct stat st;
	uint8_t *data = NULL;

	if (file && fstat(fileno(file), &st) == 0) {
		*size = (size_t)st.st_size;
		data = malloc(*size ? *size : 1);
		if (data && fread(data, 1, *size, file) != *size) {
			free(data);
			data = NULL;
		}
	}
	if (file)
		fclose(file);
	return data;
}

static void replay_file(const char *path)
{
	size_t size;
	uint8_t *data = read_all(path, &size);
	int status;
	pid_t pid;

	if (!data) {
		result(path, "cannot be read");
		return;
	}
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		alarm(SECONDS * t_run_slow());
		LLVMFuzzerTestOneInput(data, size);
		free(data);
		exit(0);
	}
	free(data);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		result(path, "no process to run it in");
	else if (WIFSIGNALED(status))
		result(path, WTERMSIG(status) == SIGALRM ? "hangs" : strsignal(WTERMSIG(status)));
	else
		result(path, WEXITSTATUS(status) ? "exits with an error" : NULL);
}

static int visible(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

static void replay(const char *path)
{
	struct dirent **entries;
	int n = scandir(path, &entries, visible, alphasort);

	if (n < 0) {
		replay_file(path);
		return;
	}
	if (n == 0)
		result(path, "is empty");
	for (int i = 0; i < n; i++) {
		char inside[PATH_MAX];

		snprintf(inside, sizeof(inside), "%s/%s", path, entries[i]->d_name);
		replay_file(inside);
		free(entries[i]);
	}
	free(entries);
}

int main(int argc, char **argv)
{
	t_run_options(&argc, argv);
	for (int i = 1; i < argc; i++)
		replay(argv[i]);
	if (argc == 1) {
		const char *slash = strrchr(argv[0], '/');
		char corpus[PATH_MAX];

		snprintf(corpus, sizeof(corpus), "tests/fuzz/corpus/%s", slash ? slash + 1 : argv[0]);
		replay(corpus);
	}
	printf("%u passed, %u failed\n", passed, failed);
	return failed != 0;
}
