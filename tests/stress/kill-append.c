/*
 * kill-append.c - kill -9 while records are appended, then read the file by other means
 *
 * A child of its own program appends records of odd sizes and syncs every few. Before each append it notes in shared
 * memory up to where it is going to write, after each sync up to where it is synced. The parent kills it at a random
 * moment. Then the file is as long as what was synced, or longer, up to what was written; and every byte is right.
 *
 * Byte p of the file depends on p and on the run, so that a byte out of its place, of another run or of nobody shows.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <iomap/iomap.h>
#include "run.h"

enum { RECORD_MAX = 150000 };

/* What the child says; a page that both have mapped. */
struct notes {
	_Atomic uint64_t started;       /* end of the last append that was begun */
	_Atomic uint64_t synced;        /* up to here a sync has returned */
	_Atomic uint64_t records;
	_Atomic int error;              /* that ended the child, a line number */
};

static uint64_t record_len(uint64_t *random)
{
	switch (t_random_below(random, 8)) {
	case 0: return 1 + t_random_below(random, 16);
	case 1: return 4090 + t_random_below(random, 13);
	case 2: return 1 + t_random_below(random, RECORD_MAX);
	default: return 1 + t_random_below(random, 9000);
	}
}

#define CHILD(cond) do {								\
	if (!(cond)) {									\
		notes->error = __LINE__;						\
		_exit(3);								\
	}										\
} while (0)

/* Appends until it is killed. */
static _Noreturn void append(const char *path, struct notes *notes, uint64_t seed)
{
	static const uint32_t blocks[] = { 512, 1024, 4096, 16384, 65536 };
	struct iomap_cache_params params = IOMAP_CACHE_PARAMS_INIT;
	struct iomap_file_params file_params = IOMAP_FILE_PARAMS_INIT;
	uint64_t random = seed, size = 0;
	unsigned char *buf = malloc(RECORD_MAX);
	struct iomap_cache *cache;
	struct iomap_file *file;
	unsigned how, every;
	int ret;

	params.memory_bytes = 1048576ULL << t_random_below(&random, 4);
	params.max_folio_bytes = 4096ULL << t_random_below(&random, 6);
	params.accounting = (enum iomap_accounting)t_random_below(&random, 3);
	if (t_random_below(&random, 2))
		params.dirty_background_bytes = 65536;
	params.dirty_writeback_ms = t_random_below(&random, 2) ? 1 + (unsigned)t_random_below(&random, 5) : 0;
	params.dirty_expire_ms = params.dirty_writeback_ms;
	file_params.block_size = blocks[t_random_below(&random, 5)];
	how = (unsigned)t_random_below(&random, 3);
	every = 1 + (unsigned)t_random_below(&random, 8);
	CHILD(buf && iomap_cache_create(&cache, &params) == 0);
	ret = iomap_open_with(cache, path, O_RDWR | O_CREAT | (how == 1 ? O_APPEND : 0), 0600, &file_params, &file);
	if (ret == -EINVAL) {           /* the block size is below the file's alignment */
		file_params.block_size = 0;
		ret = iomap_open_with(cache, path, O_RDWR | O_CREAT | (how == 1 ? O_APPEND : 0), 0600, &file_params, &file);
	}
	CHILD(ret == 0);
	for (uint64_t record = 1; ; record++) {
		uint64_t len = record_len(&random);
		struct iovec iov = { buf, len };
		int flags = IOMAP_RWF_APPEND;
		bool dsync = how == 2 && record % every == 0;
		ssize_t n;

		t_fill(buf, size, len, seed);
		notes->started = size + len;
		if (dsync)
			flags |= IOMAP_RWF_DSYNC;
		if (how == 0)
			n = iomap_pwrite(file, buf, len, (off_t)size);
		else if (how == 1)
			n = iomap_pwrite(file, buf, len, 0);
		else
			n = iomap_pwritev2(file, &iov, 1, 0, flags);
		CHILD(n == (ssize_t)len);
		size += len;
		CHILD(iomap_size(file) == (off_t)size);
		if (!dsync && record % every == 0)
			CHILD((record & 1 ? iomap_fsync(file) : iomap_fdatasync(file)) == 0);
		if (record % every == 0)        /* a record that is durable at the end of the file says how long that is */
			notes->synced = size;
		notes->records = record;
		if (size > 64 << 20)            /* an exit without close is no other than a kill */
			_exit(0);
	}
}

__attribute__((format(printf, 3, 4)))
static bool wrong(unsigned run, uint64_t seed, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	printf("FAILED  run %u: ", run);
	vprintf(format, ap);
	printf("; again: --ops 1 --seed %llu\n", (unsigned long long)seed);
	va_end(ap);
	return false;
}

static bool check_file(const char *path, const struct notes *notes, unsigned run, uint64_t seed)
{
	uint64_t synced = notes->synced, started = notes->started, pos = 0;
	unsigned char *buf = malloc(1 << 20);
	struct stat st;
	bool good = true;
	int fd = open(path, O_RDONLY);

	if (fd < 0) {           /* killed before it was there */
		free(buf);
		return synced == 0 || wrong(run, seed, "cannot open the file: %s", strerror(errno));
	}
	fstat(fd, &st);
	if ((uint64_t)st.st_size < synced || (uint64_t)st.st_size > started)
		good = wrong(run, seed, "size is %llu, synced %llu, written %llu", (unsigned long long)st.st_size,
			     (unsigned long long)synced, (unsigned long long)started);
	while (good) {
		ssize_t n = read(fd, buf, 1 << 20);

		if (n < 0)
			good = wrong(run, seed, "read at %llu: %s", (unsigned long long)pos, strerror(errno));
		if (n <= 0)
			break;
		if (!t_check_fill(buf, pos, (size_t)n, seed))
			good = wrong(run, seed, "a byte nobody wrote; size %llu, synced %llu, written %llu",
				     (unsigned long long)st.st_size, (unsigned long long)synced,
				     (unsigned long long)started);
		pos += (uint64_t)n;
	}
	if (good && pos != (uint64_t)st.st_size)
		good = wrong(run, seed, "%llu bytes read, size is %llu", (unsigned long long)pos,
			     (unsigned long long)st.st_size);
	close(fd);
	free(buf);
	return good;
}

static bool has_ended(pid_t pid)
{
	siginfo_t info = { 0 };

	return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

static bool run_once(const char *program, struct notes *notes, int notes_fd, unsigned run, uint64_t seed)
{
	uint64_t random = seed, enough = t_random_below(&random, 40), end;
	char path[4096], fd_text[16], seed_text[32];
	int status;
	pid_t pid;

	t_run_path(path, sizeof(path), "appended");
	unlink(path);
	memset(notes, 0, sizeof(*notes));
	snprintf(fd_text, sizeof(fd_text), "%d", notes_fd);
	snprintf(seed_text, sizeof(seed_text), "%llu", (unsigned long long)seed);
	fflush(NULL);
	pid = fork();
	if (pid < 0) {
		perror("fork");
		exit(2);
	}
	if (pid == 0) {
		execl(program, program, "--append", path, fd_text, seed_text, (char *)NULL);
		_exit(4);
	}
	/* the moment: after so many records, and a little later */
	T_WAIT(notes->records >= enough || has_ended(pid), 20000);
	end = t_run_now_ns() + t_random_below(&random, 3000000);
	while (t_run_now_ns() < end)
		;
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	if (notes->error)
		return wrong(run, seed, "the child failed in line %d", notes->error);
	if (notes->records < enough && notes->started <= 64 << 20)
		return wrong(run, seed, "the child has written only %llu records, status %#x",
			     (unsigned long long)notes->records, status);
	return check_file(path, notes, run, seed);
}

int main(int argc, char **argv)
{
	struct t_options options = { .ops = 200, .long_ops = 20000 };
	unsigned passed = 0, failed = 0;
	struct notes *notes;
	int fd;

	if (argc == 5 && strcmp(argv[1], "--append") == 0) {
		notes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[3]), 0);
		if (notes == MAP_FAILED)
			return 5;
		append(argv[2], notes, strtoull(argv[4], NULL, 0));
	}
	t_parse_options(&options, argc, argv);
	if (t_run_slow() > 1 && !options.long_run)
		options.ops = 40;
	if (!t_direct_io()) {
		printf("skipped: no O_DIRECT in the directory for temporary files\n0 passed, 0 failed, 1 skipped\n");
		return 77;
	}
	fd = memfd_create("notes", 0);
	if (fd < 0 || ftruncate(fd, 4096) != 0) {
		perror("memfd_create");
		return 2;
	}
	notes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	for (unsigned run = 0; run < options.ops && failed < 5; run++) {
		/* the contents know 16 bits of it */
		if (run_once("/proc/self/exe", notes, fd, run, (options.seed + run) & 0xffff))
			passed++;
		else
			failed++;
	}
	t_run_remove(t_run_dir());
	printf("%u passed, %u failed\n", passed, failed);
	return failed != 0;
}
