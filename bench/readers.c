/*
 * readers.c - do readers of a large folio notice a writer elsewhere in it?
 *
 * One file with one folio of 2 MiB, all of it cached. Two threads read its first 4 KiB again and again, alone
 * and while a third overwrites the 4 KiB at 1 MiB: where a writer disturbs only readers of what it writes,
 * their rate stays.
 *
 * On a machine with fewer CPUs than threads the writer also takes CPU time from the readers, which says nothing
 * about the cache. So the answer is by reads per second of a reader's own time: the clock's, less the time that
 * it was ready to run and waited for a CPU (/proc/thread-self/schedstat). Time asleep on a lock stays in.
 * (Where the kernel does not count, it is CPU time, which would hide such sleep; the report says which.) The
 * rate by the clock is given beside it.
 *
 * Then the promise that comes with it: two threads read the very block that the third overwrites, each time
 * with another value in all its bytes. Bytes that differ within one read are part of a write.
 */
#include "bench.h"
#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <iomap/iomap.h>

#define MEMORY_BYTES MIB(64)
#define FOLIO_BYTES  MIB(2)
#define FOLIO_ORDER  9
#define BLOCK_BYTES  4096
#define READ_POS     0
#define WRITE_POS    MIB(1)
#define NR_READERS   2
#define MAX_REPEATS  99
#define WANTED_RATIO 0.80
#define BATCH        64          /* reads between two looks at the stop flag */

enum task { READ_RATE, READ_CHECK, OVERWRITE };

struct worker {
	enum task task;
	struct iomap_file *file;
	const _Atomic bool *go, *stop;
	pthread_t thread;
	uint64_t pos;
	int error;
	uint64_t done, torn;
	uint64_t own_ns, wall_ns;
};

/* Reads per second: of one reader's own time, and of the clock, added over the readers. */
struct rates {
	double own, wall;
};

/* How long the calling thread was ready to run and had no CPU. Returns false where the kernel does not count it. */
static bool cpu_wait_ns(uint64_t *out)
{
	FILE *schedstat = fopen("/proc/thread-self/schedstat", "r");
	uint64_t ran_ns;
	bool known;

	if (!schedstat)
		return false;
	known = fscanf(schedstat, "%" SCNu64 " %" SCNu64, &ran_ns, out) == 2 && ran_ns;
	fclose(schedstat);
	return known;
}

static bool cpu_wait_known(void)
{
	uint64_t begin = now_ns(), wait_ns;

	while (now_ns() < begin + 10000000)
		; /* the kernel may not have counted a young thread yet */
	return cpu_wait_ns(&wait_ns);
}

static void read_block(struct worker *w, unsigned char *buf)
{
	for (unsigned i = 0; i < BATCH && !w->error; i++) {
		ssize_t ret = iomap_pread(w->file, buf, BLOCK_BYTES, (off_t)w->pos);

		if (ret != BLOCK_BYTES) {
			w->error = ret < 0 ? (int)ret : -EIO;
			break;
		}
		w->done++;
		/* all bytes are equal if each equals the next */
		if (w->task == READ_CHECK && memcmp(buf, buf + 1, BLOCK_BYTES - 1))
			w->torn++;
	}
}

static void write_block(struct worker *w, unsigned char *buf)
{
	for (unsigned i = 0; i < BATCH && !w->error; i++) {
		ssize_t ret;

		memset(buf, (int)(w->done & 0xff), BLOCK_BYTES);
		ret = iomap_pwrite(w->file, buf, BLOCK_BYTES, (off_t)w->pos);
		if (ret != BLOCK_BYTES) {
			w->error = ret < 0 ? (int)ret : -EIO;
			break;
		}
		w->done++;
	}
}

static void *work(void *arg)
{
	struct worker *w = arg;
	unsigned char *buf = aligned_alloc(BLOCK_BYTES, BLOCK_BYTES);
	uint64_t wall_ns, cpu_ns, wait_ns = 0, wait_end_ns = 0;
	bool known;

	if (!buf)
		w->error = -ENOMEM;
	while (!*w->go)
		sleep_until_ns(now_ns() + 100000);
	wall_ns = now_ns();
	cpu_ns = thread_cpu_ns();
	cpu_wait_ns(&wait_ns);
	while (!w->error && !*w->stop) {
		if (w->task == OVERWRITE)
			write_block(w, buf);
		else
			read_block(w, buf);
	}
	known = cpu_wait_ns(&wait_end_ns);
	w->wall_ns = now_ns() - wall_ns;
	w->own_ns = known ? w->wall_ns - (wait_end_ns - wait_ns) : thread_cpu_ns() - cpu_ns;
	free(buf);
	return NULL;
}

/* Lets the readers do @task at @read_pos for @seconds, with or without the writer. @workers gets what they did. */
static int phase(struct iomap_file *file, enum task task, uint64_t read_pos, bool with_writer, double seconds,
		 struct worker workers[NR_READERS + 1])
{
	unsigned nr = NR_READERS + with_writer;
	_Atomic bool go = false, stop = false;
	unsigned started;
	int ret = 0;

	memset(workers, 0, (NR_READERS + 1) * sizeof *workers);
	for (started = 0; started < nr; started++) {
		struct worker *w = &workers[started];

		w->task = started < NR_READERS ? task : OVERWRITE;
		w->pos = started < NR_READERS ? read_pos : WRITE_POS;
		w->file = file;
		w->go = &go;
		w->stop = &stop;
		ret = -pthread_create(&w->thread, NULL, work, w);
		if (ret)
			break;
	}
	go = true;
	if (!ret)
		sleep_until_ns(now_ns() + (uint64_t)(seconds * 1e9));
	stop = true;
	for (unsigned i = 0; i < started; i++) {
		pthread_join(workers[i].thread, NULL);
		if (!ret)
			ret = workers[i].error;
	}
	return ret;
}

static int measure(struct iomap_file *file, bool with_writer, double seconds, struct rates *rates)
{
	struct worker workers[NR_READERS + 1];
	int ret = phase(file, READ_RATE, READ_POS, with_writer, seconds, workers);

	*rates = (struct rates){ 0, 0 };
	for (unsigned i = 0; i < NR_READERS && !ret; i++) {
		rates->own += (double)workers[i].done * 1e9 / (double)(workers[i].own_ns + 1) / NR_READERS;
		rates->wall += (double)workers[i].done * 1e9 / (double)(workers[i].wall_ns + 1);
	}
	return ret;
}

/* A file on @device whose first 2 MiB are one clean folio. */
static int make_folio(struct iomap_cache *cache, struct iomap_device *device, struct iomap_file **out)
{
	const struct iomap_file_params params = {
		.struct_size = sizeof params,
		.block_size = BLOCK_BYTES,
		.device = device,
	};
	struct iomap_cache_stat st;
	unsigned char *buf;
	ssize_t wrote;
	int ret;

	ret = iomap_open_with(cache, NULL, O_RDWR, 0, &params, out);
	if (ret)
		return ret;
	buf = calloc(1, FOLIO_BYTES);
	if (!buf) {
		ret = -ENOMEM;
		goto close_file;
	}
	wrote = iomap_pwrite(*out, buf, FOLIO_BYTES, 0);
	free(buf);
	ret = wrote < 0 ? (int)wrote : wrote == (ssize_t)FOLIO_BYTES ? iomap_fsync(*out) : -EIO;
	if (ret)
		goto close_file;
	ret = iomap_cache_stat(cache, &st, sizeof st);
	if (ret)
		goto close_file;
	if (!st.folios[FOLIO_ORDER])
		complain("warning: the cache did not make one folio of 2 MiB; the answer is about smaller ones");
	return 0;
close_file:
	iomap_close(*out);
	return ret;
}

static const char help[] =
	"usage: iomap-bench readers [options]\n"
	"\n"
	"Two threads read the first block of a cached 2 MiB folio, alone and while a third overwrites a block 1 MiB away.\n"
	"The exit status is 0 if the readers keep 80 % of their rate, waits for a CPU left out, and none of them ever sees\n"
	"part of a block write; 1 if not.\n"
	"\n"
	"  --seconds N        of each measurement, default 1\n"
	"  --check-seconds N  of reading the block that is being written, default 10\n"
	"  --runs N           alternating repeats, default 5\n"
	"  --json             one object on stdout, everything else on stderr\n";

struct setup {
	double seconds, check_seconds;
	unsigned runs;
	bool json;
};

/* Returns 0 to go on, or the exit status + 1. */
static int parse_options(struct setup *setup, int argc, char **argv)
{
	enum { SECONDS = 1, CHECK_SECONDS, RUNS, JSON, HELP };
	static const struct option options[] = {
		{ "seconds", required_argument, NULL, SECONDS },
		{ "check-seconds", required_argument, NULL, CHECK_SECONDS },
		{ "runs", required_argument, NULL, RUNS },
		{ "json", no_argument, NULL, JSON },
		{ "help", no_argument, NULL, HELP },
		{ NULL, 0, NULL, 0 }
	};
	bool good = true;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case SECONDS:
			good = parse_number(optarg, &setup->seconds) && setup->seconds > 0 &&
			       setup->seconds <= 3600;
			break;
		case CHECK_SECONDS:
			good = parse_number(optarg, &setup->check_seconds) && setup->check_seconds >= 0 &&
			       setup->check_seconds <= 3600;
			break;
		case RUNS:
			good = parse_count(optarg, MAX_REPEATS, &setup->runs);
			break;
		case JSON:
			setup->json = true;
			break;
		case HELP:
			fputs(help, stdout);
			return 0 + 1;
		default:
			good = false;
			break;
		}
		if (!good)
			break;
	}
	if (good && optind == argc)
		return 0;
	complain("iomap-bench readers --help lists the options and their bounds");
	return 2 + 1;
}

struct outcome {
	struct rates alone[MAX_REPEATS], beside[MAX_REPEATS];
	uint64_t checked, torn, writes;
};

static struct spread ratios(const struct setup *setup, const struct outcome *o, bool by_own)
{
	double values[MAX_REPEATS];

	for (unsigned i = 0; i < setup->runs; i++)
		values[i] = by_own ? o->beside[i].own / o->alone[i].own : o->beside[i].wall / o->alone[i].wall;
	return spread_of(values, setup->runs);
}

static struct spread rate_spread(const struct setup *setup, const struct rates *rates, bool by_own)
{
	double values[MAX_REPEATS];

	for (unsigned i = 0; i < setup->runs; i++)
		values[i] = by_own ? rates[i].own : rates[i].wall;
	return spread_of(values, setup->runs);
}

static void print_row(struct table *table, const char *what, struct spread alone, struct spread beside,
		      struct spread ratio)
{
	table_cell(table, "%s", what);
	table_cell(table, "%s", show_count(alone.median));
	table_cell(table, "%s", show_count(beside.median));
	table_cell(table, "%.3f", ratio.median);
	table_cell(table, "%.3f to %.3f", ratio.min, ratio.max);
}

static bool print_outcome(const struct setup *setup, const struct outcome *o, FILE *out)
{
	static const char *const heads[] = { "\nreads per second of", "\nalone", "beside\na writer", "\nratio", "\nspread" };
	struct table *table = table_create(heads, ARRAY_LEN(heads));
	struct spread own = ratios(setup, o, true);
	bool kept = own.median >= WANTED_RATIO;

	print_row(table, "a reader's own time", rate_spread(setup, o->alone, true),
		  rate_spread(setup, o->beside, true), own);
	print_row(table, "the clock, both readers", rate_spread(setup, o->alone, false),
		  rate_spread(setup, o->beside, false), ratios(setup, o, false));
	fputc('\n', out);
	table_print(table, out);
	table_destroy(table);
	fprintf(out,
		"\nMedians of %u alternating repeats of %g s. Judged by a reader's own time, %s, since\nthree threads may "
		"share fewer CPUs: the readers keep %.1f %% of their rate (at least %.0f %% is good): %s.\n",
		setup->runs, setup->seconds,
		cpu_wait_known() ? "the clock's less its waits for a CPU" : "here that on a CPU", 100 * own.median,
		100 * WANTED_RATIO, kept ? "good" : "NO");
	if (o->checked)
		fprintf(out,
			"Part of a block write was seen in %s of %s reads of the block being written (%s writes in %g "
			"s): %s.\n",
			show_count((double)o->torn), show_count((double)o->checked), show_count((double)o->writes),
			setup->check_seconds, o->torn ? "NO" : "good");
	return kept && !o->torn;
}

static void print_json(const struct setup *setup, const struct outcome *o)
{
	struct spread own = ratios(setup, o, true);
	json_t *object = json_object();

	json_object_set_new(object, "scenario", json_string("readers"));
	json_object_set_new(object, "backend", json_string("libiomap"));
	json_object_set_new(object, "alone_reads_per_s",
			    report_real(rate_spread(setup, o->alone, true).median, 0));
	json_object_set_new(object, "beside_reads_per_s",
			    report_real(rate_spread(setup, o->beside, true).median, 0));
	json_object_set_new(object, "ratio", report_real(own.median, 4));
	json_object_set_new(object, "ratio_min", report_real(own.min, 4));
	json_object_set_new(object, "ratio_max", report_real(own.max, 4));
	json_object_set_new(object, "wall_ratio", report_real(ratios(setup, o, false).median, 4));
	json_object_set_new(object, "checked_reads", json_integer((json_int_t)o->checked));
	json_object_set_new(object, "checked_writes", json_integer((json_int_t)o->writes));
	json_object_set_new(object, "torn_reads", json_integer((json_int_t)o->torn));
	report_json(object);
}

static int measure_all(const struct setup *setup, struct iomap_file *file, struct outcome *o)
{
	struct worker workers[NR_READERS + 1];
	struct rates warm_up;
	int ret;

	ret = measure(file, true, setup->seconds < 0.2 ? setup->seconds : 0.2, &warm_up);
	for (unsigned i = 0; i < setup->runs && !ret; i++) {
		/* every other repeat begins with the writer, so that what drifts does not favour one side */
		bool writer_first = i % 2;

		ret = measure(file, writer_first, setup->seconds, writer_first ? &o->beside[i] : &o->alone[i]);
		if (!ret)
			ret = measure(file, !writer_first, setup->seconds,
				      writer_first ? &o->alone[i] : &o->beside[i]);
	}
	if (ret || setup->check_seconds == 0)
		return ret;
	ret = phase(file, READ_CHECK, WRITE_POS, true, setup->check_seconds, workers);
	for (unsigned i = 0; i < NR_READERS; i++) {
		o->checked += workers[i].done;
		o->torn += workers[i].torn;
	}
	o->writes = workers[NR_READERS].done;
	return ret;
}

static int readers(int argc, char **argv)
{
	struct setup setup = { .seconds = 1, .check_seconds = 10, .runs = 5 };
	const struct iomap_cache_params cache_params = {
		.struct_size = sizeof cache_params,
		.memory_bytes = MEMORY_BYTES,
		.dirty_bytes = MEMORY_BYTES / 2,
		.dirty_writeback_ms = IOMAP_NEVER, /* nothing but the threads here touches the folio */
	};
	struct outcome outcome = { .checked = 0 };
	struct iomap_device *device;
	struct iomap_cache *cache;
	struct iomap_file *file;
	const char *step;
	bool good = false;
	FILE *out;
	int ret;

	ret = parse_options(&setup, argc, argv);
	if (ret)
		return ret - 1;
	out = setup.json ? stderr : stdout;
	report_machine(out, "readers", "one folio of 2 MiB on a device in memory; cache 64 MiB, blocks of 4 KiB");
	fflush(out);

	step = "making a cache";
	ret = iomap_cache_create(&cache, &cache_params);
	if (ret)
		goto report;
	step = "making a device in memory";
	ret = iomap_device_open_mem(NULL, &device);
	if (ret)
		goto destroy_cache;
	step = "making the folio";
	ret = make_folio(cache, device, &file);
	if (ret)
		goto close_device;
	step = "reading beside a writer";
	ret = measure_all(&setup, file, &outcome);
	iomap_close(file);
close_device:
	iomap_device_close(device);
destroy_cache:
	if (iomap_cache_destroy(cache))
		iomap_cache_abandon(cache);
report:
	if (ret) {
		complain("%s: %s", step, strerror(-ret));
		return 1;
	}
	good = print_outcome(&setup, &outcome, out);
	report_repeat(out, argc, argv);
	if (setup.json)
		print_json(&setup, &outcome);
	return good ? 0 : 1;
}

const struct workload readers_workload = {
	.name = "readers",
	.question = "do readers of a large folio notice a writer elsewhere in it?",
	.run = readers,
};
