/*
 * hot.c - what do stable contents cost a writer of a small hot region?
 *
 * Two threads overwrite 16 KiB at random in a region of 64 KiB to 2 MiB, as fast as they can, while the flusher writes it
 * over and over: the background limit is far below what is dirty all the time, the hard limit far above, so nobody is
 * throttled. What is dirty already wakes no flusher; so a third thread dirties 4 KiB behind the region every 0.2 ms. With stable contents small requests are copied and writers wait for what a larger one reads; opened UNSTABLE
 * neither happens. Each size runs both ways, alternating, on the same file.
 */
#include "bench.h"
#include "report.h"
#include "scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <iomap/iomap.h>

#define MEMORY_BYTES     MIB(64)
#define DIRTY_BYTES      MIB(24)
#define BACKGROUND_BYTES KIB(16)
#define TRICKLE_BYTES    4096
#define TRICKLE_BLOCKS   256
#define TRICKLE_PAUSE_NS 200000
#define WRITE_BYTES      KIB(16)
#define NR_WRITERS       2
#define MAX_REPEATS      99

static const uint64_t regions[] = { KIB(64), KIB(256), MIB(1), MIB(2) };

#define NR_REGIONS ARRAY_LEN(regions)

enum { STABLE, UNSTABLE, NR_WAYS };

struct writer {
	pthread_t thread;
	struct iomap_file *file;
	const _Atomic bool *stop;
	uint64_t region, seed, done;
	int error;
};

/* Bytes per second into the cache, and to the device. */
struct rates { double wrote, device; };

struct setup { const char *dir; double seconds; unsigned runs; bool json; };

static void *overwrite(void *arg)
{
	struct writer *w = arg;
	struct rng rng = { w->seed };
	unsigned char *buf = calloc(1, WRITE_BYTES);

	if (!buf)
		w->error = -ENOMEM;
	while (!w->error && !*w->stop) {
		uint64_t pos = rng_below(&rng, w->region / WRITE_BYTES) * WRITE_BYTES;
		ssize_t ret;

		buf[0]++;
		ret = iomap_pwrite(w->file, buf, WRITE_BYTES, (off_t)pos);
		if (ret != (ssize_t)WRITE_BYTES)
			w->error = ret < 0 ? (int)ret : -EIO;
		w->done += WRITE_BYTES;
	}
	free(buf);
	return NULL;
}

static void *trickle(void *arg)
{
	static const unsigned char block[TRICKLE_BYTES];
	struct writer *w = arg;

	for (uint64_t n = 0; !w->error && !*w->stop; n++) {
		ssize_t ret = iomap_pwrite(w->file, block, TRICKLE_BYTES, (off_t)(w->region + n % TRICKLE_BLOCKS * TRICKLE_BYTES));

		if (ret != TRICKLE_BYTES)
			w->error = ret < 0 ? (int)ret : -EIO;
		sleep_until_ns(now_ns() + TRICKLE_PAUSE_NS);
	}
	return NULL;
}

static int write_for(struct iomap_cache *cache, struct iomap_file *file, uint64_t region, double seconds, struct rates *out)
{
	struct writer writers[NR_WRITERS + 1];
	struct iomap_cache_stat before, after;
	_Atomic bool stop = false;
	uint64_t begin, done = 0;
	unsigned started;
	int ret = iomap_cache_stat(cache, &before, sizeof before);

	memset(writers, 0, sizeof writers);
	begin = now_ns();
	for (started = 0; started < NR_WRITERS + 1 && !ret; started++) {
		struct writer *w = &writers[started];

		*w = (struct writer){ .file = file, .stop = &stop, .region = region, .seed = started + 1 };
		ret = -pthread_create(&w->thread, NULL, started < NR_WRITERS ? overwrite : trickle, w);
		if (ret)
			break;
	}
	if (!ret)
		sleep_until_ns(begin + (uint64_t)(seconds * 1e9));
	stop = true;
	for (unsigned i = 0; i < started; i++) {
		pthread_join(writers[i].thread, NULL);
		done += writers[i].done;
		if (!ret)
			ret = writers[i].error;
	}
	if (!ret)
		ret = iomap_cache_stat(cache, &after, sizeof after);
	if (!ret) {
		double took = (double)(now_ns() - begin) / 1e9;

		*out = (struct rates){ (double)done / took, (double)(after.written_bytes - before.written_bytes) / took };
	}
	return ret;
}

/* One run: a new cache on the file, its region written once before the clock starts. */
static int run(const struct scratch *s, uint64_t region, bool unstable, double seconds, struct rates *out)
{
	const struct iomap_cache_params params = {
		.struct_size = sizeof params,
		.memory_bytes = MEMORY_BYTES,
		.dirty_bytes = DIRTY_BYTES,
		.dirty_background_bytes = BACKGROUND_BYTES,
	};
	const struct iomap_file_params file_params = {
		.struct_size = sizeof file_params,
		.flags = unstable ? IOMAP_OPEN_UNSTABLE : 0,
	};
	unsigned char *zeros = calloc(1, region);
	struct iomap_cache *cache;
	struct iomap_file *file;
	int ret, closed;

	if (!zeros)
		return -ENOMEM;
	ret = iomap_cache_create(&cache, &params);
	if (ret)
		goto free_zeros;
	ret = iomap_open_with(cache, s->path, O_RDWR, 0, &file_params, &file);
	if (ret)
		goto destroy;
	if (iomap_pwrite(file, zeros, region, 0) != (ssize_t)region)
		ret = -EIO;
	if (!ret)
		ret = iomap_fsync(file);
	if (!ret)
		ret = write_for(cache, file, region, seconds, out);
	closed = iomap_close(file);
	ret = ret ? ret : closed;
destroy:
	closed = iomap_cache_destroy(cache);
	ret = ret ? ret : closed;
free_zeros:
	free(zeros);
	return ret;
}

static const char help[] =
	"usage: iomap-bench hot [options]\n"
	"\n"
	"Two threads overwrite a region of 64 KiB, 256 KiB, 1 MiB and 2 MiB, 16 KiB at a time, while the flusher\n"
	"writes it over and over: with stable contents, and on a file opened UNSTABLE.\n"
	"\n"
	"  --dir PATH     where the file goes\n"
	"  --seconds N    of each run, default 1\n"
	"  --runs N       alternating repeats, default 5\n"
	"  --json         an object a size on stdout, everything else on stderr\n";

/* Returns 0 to go on, or the exit status + 1. */
static int parse_options(struct setup *setup, int argc, char **argv)
{
	enum { DIR = 1, SECONDS, RUNS, JSON, HELP };
	static const struct option options[] = {
		{ "dir", required_argument, NULL, DIR },
		{ "seconds", required_argument, NULL, SECONDS },
		{ "runs", required_argument, NULL, RUNS },
		{ "json", no_argument, NULL, JSON },
		{ "help", no_argument, NULL, HELP },
		{ NULL, 0, NULL, 0 }
	};
	bool good = true;
	int option;

	while (good && (option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case DIR:
			setup->dir = optarg;
			break;
		case SECONDS:
			good = parse_number(optarg, &setup->seconds) && setup->seconds > 0 && setup->seconds <= 3600;
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
		}
	}
	if (good && optind == argc)
		return 0;
	complain("iomap-bench hot --help lists the options and their bounds");
	return 2 + 1;
}

static struct rates repeats[NR_REGIONS][NR_WAYS][MAX_REPEATS];

static struct spread spread_by(const struct setup *setup, unsigned region, unsigned way, bool device)
{
	double values[MAX_REPEATS];

	for (unsigned i = 0; i < setup->runs; i++)
		values[i] = device ? repeats[region][way][i].device : repeats[region][way][i].wrote;
	return spread_of(values, setup->runs);
}

static struct spread ratio_of(const struct setup *setup, unsigned region)
{
	double values[MAX_REPEATS];

	for (unsigned i = 0; i < setup->runs; i++)
		values[i] = repeats[region][UNSTABLE][i].wrote / repeats[region][STABLE][i].wrote;
	return spread_of(values, setup->runs);
}

static void print(const struct setup *setup, FILE *out)
{
	static const char *const heads[] = { "\nregion", "stable\nwritten/s", "\ndevice/s", "unstable\nwritten/s", "\ndevice/s",
					     "unstable /\nstable", "\nspread" };
	struct table *table = table_create(heads, ARRAY_LEN(heads));

	for (unsigned r = 0; r < NR_REGIONS; r++) {
		struct spread ratio = ratio_of(setup, r);

		table_cell(table, "%s", show_bytes((double)regions[r]));
		for (unsigned way = 0; way < NR_WAYS; way++) {
			table_cell(table, "%s", show_bytes(spread_by(setup, r, way, false).median));
			table_cell(table, "%s", show_bytes(spread_by(setup, r, way, true).median));
		}
		table_cell(table, "%.2f", ratio.median);
		table_cell(table, "%.2f to %.2f", ratio.min, ratio.max);
	}
	fputc('\n', out);
	table_print(table, out);
	table_destroy(table);
	fprintf(out, "\nMedians of %u alternating repeats of %g s, two writers of 16 KiB.\n", setup->runs, setup->seconds);
}

static void print_json(const struct setup *setup)
{
	for (unsigned r = 0; r < NR_REGIONS; r++) {
		json_t *object = json_object();

		json_object_set_new(object, "scenario", json_string("hot"));
		json_object_set_new(object, "region_bytes", json_integer((json_int_t)regions[r]));
		json_object_set_new(object, "stable_bytes_per_s", report_real(spread_by(setup, r, STABLE, false).median, 0));
		json_object_set_new(object, "stable_device_bytes_per_s", report_real(spread_by(setup, r, STABLE, true).median, 0));
		json_object_set_new(object, "unstable_bytes_per_s", report_real(spread_by(setup, r, UNSTABLE, false).median, 0));
		json_object_set_new(object, "unstable_device_bytes_per_s", report_real(spread_by(setup, r, UNSTABLE, true).median, 0));
		json_object_set_new(object, "ratio", report_real(ratio_of(setup, r).median, 4));
		report_json(object);
	}
}

static int hot(int argc, char **argv)
{
	struct setup setup = { .seconds = 1, .runs = 5 };
	struct scratch scratch;
	char where[4300];
	FILE *out;
	int ret = parse_options(&setup, argc, argv);

	if (ret)
		return ret - 1;
	out = setup.json ? stderr : stdout;
	if (scratch_create(&scratch, setup.dir, MIB(4), 4096, NULL))
		return 1;
	snprintf(where, sizeof where, "%s (%s)", scratch.dir, scratch.fs_type);
	report_machine(out, "hot", where);
	for (unsigned i = 0; i < setup.runs && !ret; i++) {
		for (unsigned n = 0; n < NR_REGIONS * NR_WAYS && !ret; n++) {
			unsigned region = n / NR_WAYS, way = (n + i) % NR_WAYS;

			status("repeat %u of %u, %s", i + 1, setup.runs, show_bytes((double)regions[region]));
			ret = run(&scratch, regions[region], way == UNSTABLE, setup.seconds, &repeats[region][way][i]);
		}
	}
	status_clear();
	scratch_destroy(&scratch);
	if (ret) {
		complain("a run failed: %s", strerror(-ret));
		return 1;
	}
	print(&setup, out);
	if (setup.json)
		print_json(&setup);
	report_repeat(out, argc, argv);
	return 0;
}

const struct workload hot_workload = {
	.name = "hot",
	.question = "what do stable contents cost a writer of a small hot region?",
	.run = hot,
};
