/*
 * overcharge.c - what does it cost to charge whole folios for small writes?
 *
 * A file is read in order, so that the cache holds it in large folios; then threads write small blocks at
 * random, faster than the device can take them but not faster than the dirty limits can absorb for a while.
 * Where the first write into a clean 256 KiB folio charges 256 KiB, the limits are reached at once and the
 * writers are slowed to the device's pace; where it charges the block, they are not. Every variant runs the
 * same load on the same file in a new cache:
 *
 *	control  folios charged, but nothing was read before: the writes make 4 KiB folios
 *	folio    the whole folio is charged, as mainline Linux does
 *	page     every page that holds a dirty block
 *	block    the dirty blocks themselves
 *
 * The device is a real file behind a token bucket: no limit while the file is read, 3000 IOPS while it is
 * written, no limit for the final sync. Writers are paced in an open loop (pacer.h). Everything is counted
 * until after the final sync, when all that was charged has been written: what was charged comes from the
 * cache, what was written from the device below the bucket, checked against what the kernel counted for the
 * process.
 */
#include "bench.h"
#include "histogram.h"
#include "load.h"
#include "report.h"
#include "scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <iomap/iomap.h>

#define READAHEAD_BYTES  KIB(256)
#define READ_BYTES       KIB(256)
#define DEVICE_IOPS      3000
#define DEVICE_DEPTH     64
#define MAX_THREADS      256
#define MAX_RUNS         99
#define MAX_SECONDS      3600

/* /proc/self/io may differ from the device's count by this much: it also has whatever else the process writes. */
#define IO_TOLERANCE     0.02
#define IO_SLACK_BYTES   MIB(1)

/*
 * Everything scales with the size of the file, so that a small run is the same in miniature: with the default
 * of 1.5 GiB the cache has 2 GiB, the limits are 800 and 400 MiB.
 */
#define DEFAULT_SIZE     (GIB(3) / 2)
#define MIN_SIZE         MIB(48)

static uint64_t cache_bytes(uint64_t size)
{
	return size / 3 * 4;
}

static uint64_t dirty_limit(uint64_t size)
{
	return size / 48 * 25;
}

static const struct variant {
	const char *name;
	enum iomap_accounting accounting;
	bool load;                      /* read the file before writing to it */
	struct plot_pen pen;
} variants[] = {
	{ "control", IOMAP_ACCT_FOLIO, false, { "control (4 KiB folios)",  "#c4c4c4", 9 } },
	{ "folio",   IOMAP_ACCT_FOLIO, true,  { "folio",                   "#d55e00", 2.5 } },
	{ "page",    IOMAP_ACCT_PAGE,  true,  { "page",                    "#56b4e9", 5 } },
	{ "block",   IOMAP_ACCT_BLOCK, true,  { "block",                   "#003f6b", 1.8 } },
};

#define NR_VARIANTS ARRAY_LEN(variants)

enum { CONTROL, FOLIO, PAGE, BLOCK };

struct setup {
	const char *dir;
	uint64_t size, block, write;
	double seconds, rate;
	unsigned threads, runs;
	bool chosen[NR_VARIANTS];
	bool json;
	FILE *out;                      /* for people: stdout, or stderr where stdout is for JSON */
};

/* What one run of one variant found. Also the keys of the JSON object, in this order. */
enum metric {
	DEMAND_IOPS,
	IOPS,
	SCHEDULE_LAG_MS,
	LAT_P50_US,
	LAT_P99_US,
	LAT_P999_US,
	LAT_MAX_US,
	WRITER_SLEEP_S,
	DIRTY_PEAK_BYTES,
	PINNED_PEAK_BYTES,
	MAX_DIRTY_FOLIO_BYTES,
	CHARGED_BYTES,
	DEVICE_WRITTEN_BYTES,
	CHARGE_RATIO,
	NR_METRICS
};

static const struct {
	const char *key;
	int digits;                     /* after the point; -1: an integer */
} metrics[NR_METRICS] = {
	[DEMAND_IOPS]           = { "demand_iops", 1 },
	[IOPS]                  = { "iops", 1 },
	[SCHEDULE_LAG_MS]       = { "schedule_lag_ms", 3 },
	[LAT_P50_US]            = { "lat_p50_us", 3 },
	[LAT_P99_US]            = { "lat_p99_us", 3 },
	[LAT_P999_US]           = { "lat_p999_us", 3 },
	[LAT_MAX_US]            = { "lat_max_us", 3 },
	[WRITER_SLEEP_S]        = { "writer_sleep_s", 3 },
	[DIRTY_PEAK_BYTES]      = { "dirty_peak_bytes", -1 },
	[PINNED_PEAK_BYTES]     = { "pinned_peak_bytes", -1 },
	[MAX_DIRTY_FOLIO_BYTES] = { "max_dirty_folio_bytes", -1 },
	[CHARGED_BYTES]         = { "charged_bytes", -1 },
	[DEVICE_WRITTEN_BYTES]  = { "device_written_bytes", -1 },
	[CHARGE_RATIO]          = { "charge_ratio", 6 },
};

struct result {
	double values[NR_METRICS];
	struct load_series series;
};

static void file_progress(uint64_t done, uint64_t size)
{
	if (status_is_live())
		status("writing the file: %s of %s", show_bytes((double)done), show_bytes((double)size));
}

/* The write phase. Fills in what the writers saw. Returns 0 or the first error of a writer. */
static int write_phase(const struct variant *v, const struct setup *setup, struct iomap_cache *cache,
		       struct iomap_file *file, unsigned run, struct result *result)
{
	const struct load load = {
		.name = v->name,
		.cache = cache,
		.file = file,
		.file_bytes = setup->size,
		.write_bytes = setup->write,
		.rate = setup->rate,
		.seconds = setup->seconds,
		.threads = setup->threads,
		.seed = run,                                    /* the same places for every variant of a run */
	};
	struct load_result *load_result = calloc(1, sizeof *load_result);
	double *values = result->values;
	int ret;

	if (!load_result)
		return -ENOMEM;
	ret = load_run(&load, load_result, &result->series);
	values[DEMAND_IOPS] = setup->rate;
	values[IOPS] = load_result->iops;
	values[SCHEDULE_LAG_MS] = (double)load_result->lag_max_ns / 1e6;
	values[LAT_P50_US] = (double)histogram_quantile(&load_result->latency, 0.5) / 1e3;
	values[LAT_P99_US] = (double)histogram_quantile(&load_result->latency, 0.99) / 1e3;
	values[LAT_P999_US] = (double)histogram_quantile(&load_result->latency, 0.999) / 1e3;
	values[LAT_MAX_US] = (double)load_result->latency.max / 1e3;
	free(load_result);
	return ret;
}

/* One run of one variant: a new cache on the same file. */

static int read_in_order(const struct variant *v, const struct setup *setup, struct iomap_file *file)
{
	char *buf = malloc(READ_BYTES);
	int ret = 0;

	if (!buf)
		return -ENOMEM;
	for (uint64_t pos = 0; pos < setup->size && !ret; pos += READ_BYTES) {
		uint64_t want = setup->size - pos < READ_BYTES ? setup->size - pos : READ_BYTES;
		ssize_t got = iomap_pread(file, buf, want, (off_t)pos);

		if (got != (ssize_t)want)
			ret = got < 0 ? (int)got : -EIO;
		if (status_is_live() && pos % MIB(32) == 0)
			status("%-8s reading the file through the cache: %s of %s", v->name,
			       show_bytes((double)pos), show_bytes((double)setup->size));
	}
	free(buf);
	return ret;
}

/* What the kernel says this process sent to storage, ended threads included; UINT64_MAX where it does not say. */
static uint64_t process_write_bytes(void)
{
	FILE *io = fopen("/proc/self/io", "r");
	uint64_t bytes = UINT64_MAX;
	char line[128];

	if (!io)
		return bytes;
	while (fgets(line, sizeof line, io))
		if (sscanf(line, "write_bytes: %" SCNu64, &bytes) == 1)
			break;
	fclose(io);
	return bytes;
}

static void cross_check(const struct variant *v, double written, uint64_t io_before, uint64_t io_after)
{
	double counted = (double)(io_after - io_before);

	if (io_before == UINT64_MAX || io_after == UINT64_MAX) {
		complain("warning: %s: there is no /proc/self/io here to check the device's count against",
			 v->name);
		return;
	}
	if (fabs(counted - written) <= fmax(IO_TOLERANCE * written, (double)IO_SLACK_BYTES))
		return;
	complain(
		"warning: %s: the device counted %s written, /proc/self/io %s: more than %.0f %% apart (the latter has all "
		"writes of the process, but none to a file system in memory)",
		v->name, show_bytes(written), show_bytes(counted), IO_TOLERANCE * 100);
}

static void log_message(void *priv, int level, const char *message)
{
	(void)priv;
	if (level <= IOMAP_LOG_WARN)
		fprintf(stderr, "\nlibiomap: %s\n", message);
}

/* Says which step failed and what might help. Returns -1. */
static int failed(const struct variant *v, const char *step, int error)
{
	const char *hint = "";

	status_clear();
	if (error == -ENOMEM)
		hint = "; less memory is needed with a smaller --size";
	else if (error == -EOPNOTSUPP)
		hint = "; try another directory by --dir";
	complain("%s: %s: %s%s", v->name, step, strerror(-error), hint);
	return -1;
}

static int run_variant(const struct variant *v, const struct setup *setup, const struct scratch *scratch,
		       unsigned run, struct result *result)
{
	struct iomap_cache_params cache_params = {
		.struct_size = sizeof cache_params,
		.memory_bytes = cache_bytes(setup->size),
		.accounting = v->accounting,
		.dirty_bytes = dirty_limit(setup->size),
		.dirty_background_bytes = dirty_limit(setup->size) / 2,
		.readahead_bytes = READAHEAD_BYTES,
		.log = log_message,
	};
	const struct iomap_limit_params none = { .struct_size = sizeof none };
	const struct iomap_limit_params slow = {
		.struct_size = sizeof slow,
		.iops = DEVICE_IOPS,
		.queue_depth = DEVICE_DEPTH,
	};
	struct iomap_file_params file_params = {
		.struct_size = sizeof file_params,
		.block_size = (uint32_t)setup->block,
	};
	struct iomap_cache_stat before, after;
	struct iomap_device_stat device_before, device_after;
	struct iomap_device *disk, *limit;
	struct iomap_cache *cache;
	struct iomap_file *file;
	double *values = result->values;
	uint64_t io_before;
	int ret, err;

	status("%-8s %s", v->name, v->load ? "reading the file through the cache" : "starting");
	ret = iomap_device_open_aio(scratch->path, O_RDWR, 0, &disk);
	if (ret)
		return failed(v, "opening the device", ret);
	ret = iomap_device_open_limit(disk, &none, &limit);
	if (ret) {
		failed(v, "opening the rate limiter", ret);
		goto close_disk;
	}
	ret = iomap_cache_create(&cache, &cache_params);
	if (ret) {
		failed(v, "making a cache", ret);
		goto close_limit;
	}
	file_params.device = limit;
	ret = iomap_open_with(cache, NULL, O_RDWR, 0, &file_params, &file);
	if (ret) {
		failed(v, "opening the file", ret);
		goto destroy_cache;
	}

	if (v->load && (ret = read_in_order(v, setup, file))) {
		failed(v, "reading the file", ret);
		goto close_file;
	}
	if ((ret = iomap_device_set_limit(limit, &slow)) ||
	    (ret = iomap_cache_stat(cache, &before, sizeof before)) ||
	    (ret = iomap_device_stat(disk, &device_before, sizeof device_before))) {
		failed(v, "setting up", ret);
		goto close_file;
	}
	io_before = process_write_bytes();

	ret = write_phase(v, setup, cache, file, run, result);
	if (ret) {
		failed(v, "writing", ret);
		goto close_file;
	}
	status("%-8s final sync", v->name);
	if ((ret = iomap_device_set_limit(limit, &none)) || (ret = iomap_fsync(file)) ||
	    (ret = iomap_cache_stat(cache, &after, sizeof after)) ||
	    (ret = iomap_device_stat(disk, &device_after, sizeof device_after))) {
		failed(v, "the final sync", ret);
		goto close_file;
	}
	status_clear();

	values[WRITER_SLEEP_S] = (double)(after.throttled_ns - before.throttled_ns) / 1e9;
	values[DIRTY_PEAK_BYTES] = (double)after.dirty_peak_bytes;
	values[PINNED_PEAK_BYTES] = (double)after.pinned_peak_bytes;
	values[MAX_DIRTY_FOLIO_BYTES] = (double)after.max_dirty_folio_bytes;
	values[CHARGED_BYTES] = (double)(after.dirtied_bytes + after.redirtied_bytes) -
				(double)(before.dirtied_bytes + before.redirtied_bytes);
	values[DEVICE_WRITTEN_BYTES] = (double)(device_after.written_bytes - device_before.written_bytes);
	values[CHARGE_RATIO] = values[DEVICE_WRITTEN_BYTES] > 0 ?
			       values[CHARGED_BYTES] / values[DEVICE_WRITTEN_BYTES] : 0;
	cross_check(v, values[DEVICE_WRITTEN_BYTES], io_before, process_write_bytes());
	if (after.dirty_bytes || after.writeback_bytes)
		complain("warning: %s: %s are dirty after the final sync", v->name,
			 show_bytes((double)(after.dirty_bytes + after.writeback_bytes)));
close_file:
	err = iomap_close(file);
	if (err && !ret)
		ret = failed(v, "closing the file", err);
destroy_cache:
	/* what a failed run left dirty is of no use to anybody */
	err = ret ? -EIO : iomap_cache_destroy(cache);
	if (err) {
		if (!ret)
			ret = failed(v, "ending the cache", err);
		iomap_cache_abandon(cache);
	}
close_limit:
	iomap_device_close(limit);
close_disk:
	iomap_device_close(disk);
	return ret ? -1 : 0;
}

/* The report. */

static struct spread metric_spread(const struct setup *setup, const struct result *results, unsigned variant,
				   enum metric metric)
{
	double values[MAX_RUNS];

	for (unsigned run = 0; run < setup->runs; run++)
		values[run] = results[run * NR_VARIANTS + variant].values[metric];
	return spread_of(values, setup->runs);
}

static double median_of(const struct setup *setup, const struct result *results, unsigned variant,
			enum metric metric)
{
	return metric_spread(setup, results, variant, metric).median;
}

static const char *show_ratio(double ratio)
{
	static char text[4][32];
	static unsigned next;
	char *out = text[next++ % ARRAY_LEN(text)];

	snprintf(out, sizeof text[0], ratio < 10 ? "%.3f" : "%.1f", ratio);
	return out;
}

static const struct column {
	const char *head;
	enum metric metric;
	double unit;
	const char *(*show)(double value);
} columns[] = {
	{ "write\nIOPS", IOPS, 1, show_count },
	{ "call p99\nms", LAT_P99_US, 1e3, show_fixed },
	{ "call max\nms", LAT_MAX_US, 1e3, show_fixed },
	{ "writer\nsleep s", WRITER_SLEEP_S, 1, show_fixed },
	{ "max\ndirty", DIRTY_PEAK_BYTES, 1, show_bytes },
	{ "max\npinned", PINNED_PEAK_BYTES, 1, show_bytes },
	{ "largest\ndirty folio", MAX_DIRTY_FOLIO_BYTES, 1, show_bytes },
	{ "charged /\nwritten", CHARGE_RATIO, 1, show_ratio },
};

static void print_table(const struct setup *setup, const struct result *results)
{
	const char *heads[1 + ARRAY_LEN(columns)] = { "\nvariant" };
	struct table *table;

	for (unsigned c = 0; c < ARRAY_LEN(columns); c++)
		heads[1 + c] = columns[c].head;
	table = table_create(heads, ARRAY_LEN(heads));
	for (unsigned v = 0; v < NR_VARIANTS; v++) {
		if (!setup->chosen[v])
			continue;
		table_cell(table, "%s", variants[v].name);
		for (unsigned c = 0; c < ARRAY_LEN(columns); c++) {
			const struct column *column = &columns[c];

			table_cell(table, "%s", column->show(median_of(setup, results, v, column->metric) /
							      column->unit));
		}
		if (setup->runs == 1)
			continue;
		for (unsigned end = 0; end < 2; end++) {
			table_cell(table, end ? "  to" : "  from");
			for (unsigned c = 0; c < ARRAY_LEN(columns); c++) {
				struct spread s = metric_spread(setup, results, v, columns[c].metric);

				table_cell(table, "%s", columns[c].show((end ? s.max : s.min) / columns[c].unit));
			}
		}
	}
	fputc('\n', setup->out);
	table_print(table, setup->out);
	table_destroy(table);
	fputc('\n', setup->out);
	if (setup->runs > 1)
		fprintf(setup->out, "Medians of %u alternating runs, with the lowest and the highest.\n",
			setup->runs);
}

static void print_answer(const struct setup *setup, const struct result *results)
{
	FILE *out = setup->out;
	double share[NR_VARIANTS], ratio[NR_VARIANTS];

	for (unsigned v = 0; v < NR_VARIANTS; v++) {
		share[v] = 100 * median_of(setup, results, v, IOPS) / setup->rate;
		ratio[v] = median_of(setup, results, v, CHARGE_RATIO);
	}
	fprintf(out, "Wanted: %s writes of %s a second, by %u threads. In time:", show_count(setup->rate),
		show_bytes((double)setup->write), setup->threads);
	for (unsigned v = 0, nr = 0; v < NR_VARIANTS; v++)
		if (setup->chosen[v])
			fprintf(out, "%s %s %.1f %%", nr++ ? "," : "", variants[v].name, share[v]);
	fputs(".\n", out);
	if (setup->chosen[FOLIO] && setup->chosen[BLOCK]) {
		fprintf(out,
			"Charging whole folios counted %s bytes against the limits for each byte that was written, and "
			"writers slept %s s;\n",
			show_ratio(ratio[FOLIO]), show_fixed(median_of(setup, results, FOLIO, WRITER_SLEEP_S)));
		fprintf(out, "charging the dirty blocks counted %s, and they slept %s s.\n",
			show_ratio(ratio[BLOCK]), show_fixed(median_of(setup, results, BLOCK, WRITER_SLEEP_S)));
	}
	if (setup->chosen[PAGE] && setup->chosen[BLOCK]) {
		if (setup->block >= 4096)
			fprintf(out,
				"page equals block here because blocks are %s; --block 1024 --write 1024 shows them "
				"apart.\n",
				show_bytes((double)setup->block));
		else
			fprintf(out,
				"page charges 4 KiB for every page with a dirty block, block only the %s that are.\n",
				show_bytes((double)setup->block));
	}
	if (setup->write % setup->block)
		fputs("Writes are not whole blocks: control reads each block first, from a device that is slow then.\n",
		      out);
}

static void print_json(const struct setup *setup, const struct result *results)
{
	for (unsigned v = 0; v < NR_VARIANTS; v++) {
		json_t *object;

		if (!setup->chosen[v])
			continue;
		object = json_object();
		json_object_set_new(object, "scenario", json_string("overcharge"));
		json_object_set_new(object, "backend", json_string("libiomap"));
		json_object_set_new(object, "variant", json_string(variants[v].name));
		for (unsigned m = 0; m < NR_METRICS; m++) {
			double value = median_of(setup, results, v, m);

			json_object_set_new(object, metrics[m].key, metrics[m].digits < 0 ?
					    json_integer(llround(value)) : report_real(value, metrics[m].digits));
		}
		report_json(object);
	}
}

/* The run whose IOPS are the median's, or next to it. */
static const struct result *middle_run(const struct setup *setup, const struct result *results, unsigned variant)
{
	double median = median_of(setup, results, variant, IOPS);
	const struct result *best = &results[variant];

	for (unsigned run = 1; run < setup->runs; run++) {
		const struct result *r = &results[run * NR_VARIANTS + variant];

		if (fabs(r->values[IOPS] - median) < fabs(best->values[IOPS] - median))
			best = r;
	}
	return best;
}

static void draw(const struct setup *setup, const struct result *results)
{
	/* wide pens first: control, page and block lie on each other where all is well */
	static const unsigned order[NR_VARIANTS] = { CONTROL, PAGE, BLOCK, FOLIO };
	const double hard_mib = (double)dirty_limit(setup->size) / (double)MIB(1);
	struct plot_pen pens[NR_VARIANTS];
	struct plot_line dirty[NR_VARIANTS], iops[NR_VARIANTS];
	char subtitle[256], hard[64], background[64], wanted[64];
	const struct plot_mark limits[] = { { hard_mib / 2, background }, { hard_mib, hard } };
	const struct plot_mark rates[] = { { DEVICE_IOPS, "device 3,000" }, { setup->rate, wanted } };
	const struct plot_panel panels[] = {
		{ "Dirty and in flight, as charged", "MiB", dirty, limits, ARRAY_LEN(limits) },
		{ "Writes completed, mean over half a second", "writes per second", iops, rates,
		  ARRAY_LEN(rates) },
	};
	struct plot plot = {
		.title = "Small random writes into cached large folios",
		.subtitle = subtitle,
		.x_label = "seconds",
		.x_max = setup->seconds,
		.pens = pens,
		.panels = panels,
		.nr_panels = ARRAY_LEN(panels),
	};

	for (unsigned i = 0; i < NR_VARIANTS; i++) {
		const struct load_series *s;

		if (!setup->chosen[order[i]])
			continue;
		s = &middle_run(setup, results, order[i])->series;
		pens[plot.nr_pens] = variants[order[i]].pen;
		dirty[plot.nr_pens] = (struct plot_line){ s->seconds, s->dirty_mib, s->nr };
		iops[plot.nr_pens] = (struct plot_line){ s->seconds, s->iops, s->nr };
		plot.nr_pens++;
	}
	snprintf(subtitle, sizeof subtitle,
		 "%u threads, %s at random in a file of %s, %s writes/s wanted of a device of 3,000"
		 " IOPS; libiomap %s",
		 setup->threads, show_bytes((double)setup->write), show_bytes((double)setup->size),
		 show_count(setup->rate), report_commit());
	snprintf(hard, sizeof hard, "hard limit %s", show_bytes((double)dirty_limit(setup->size)));
	snprintf(background, sizeof background, "background limit %s",
		 show_bytes((double)dirty_limit(setup->size) / 2));
	snprintf(wanted, sizeof wanted, "wanted %s", show_count(setup->rate));
	plot_draw(&plot, "overcharge.png", setup->out);
}

/* Options. */

static const char help[] =
	"usage: iomap-bench overcharge [options]\n"
	"\n"
	"What does it cost to charge whole folios for small writes? A file is read through a new cache, so that it is held\n"
	"in large folios; then threads write small blocks at random, through a device of 3000 IOPS and depth 64. Variants:\n"
	"control (folios are charged, but nothing was read before, so they are small), folio, page, block.\n"
	"\n"
	"  --dir DIR        where the temporary file goes; O_DIRECT must work there. Default: the first of build/,\n"
	"                   $TMPDIR, /var/tmp and . where it does. Nothing is left behind, however the program ends.\n"
	"  --size BYTES     of the file, default 1.5g. Memory (4/3 of it) and dirty limits (25/48, and half of that in the\n"
	"                   background) scale with it.\n"
	"  --seconds N      of writing, default 10\n"
	"  --rate N         writes per second wanted, of all threads together, default 10000. Each thread has a schedule of\n"
	"                   its own; latency is that of the call, the lag behind the schedule is given apart.\n"
	"  --threads N      default 8\n"
	"  --block BYTES    the file's block size, default 4096\n"
	"  --write BYTES    of one write, default 4096\n"
	"  --variant LIST   only these, for example folio,block; may be given more than once\n"
	"  --runs N         alternating runs of all variants, default 1; from 2 on medians, the lowest and the highest\n"
	"  --json           one object for each variant on stdout (medians), everything else on stderr\n"
	"\n"
	"BYTES may end in k, m or g.\n";

static bool choose_variants(struct setup *setup, const char *list)
{
	while (*list) {
		size_t len = strcspn(list, ",");
		bool found = false;

		for (unsigned v = 0; v < NR_VARIANTS; v++) {
			if (strlen(variants[v].name) == len && !strncmp(list, variants[v].name, len)) {
				setup->chosen[v] = true;
				found = true;
			}
		}
		if (!found) {
			complain("--variant %.*s: there are control, folio, page and block", (int)len, list);
			return false;
		}
		list += len + (list[len] == ',');
	}
	return true;
}

/* Returns 0 to go on, or the exit status + 1. */
static int parse_options(struct setup *setup, int argc, char **argv)
{
	enum { DIR = 1, SECONDS, BLOCK_SIZE, WRITE, RATE, THREADS, VARIANT, JSON, SIZE, RUNS, HELP };
	static const struct option options[] = {
		{ "dir", required_argument, NULL, DIR },
		{ "seconds", required_argument, NULL, SECONDS },
		{ "block", required_argument, NULL, BLOCK_SIZE },
		{ "write", required_argument, NULL, WRITE },
		{ "rate", required_argument, NULL, RATE },
		{ "threads", required_argument, NULL, THREADS },
		{ "variant", required_argument, NULL, VARIANT },
		{ "json", no_argument, NULL, JSON },
		{ "size", required_argument, NULL, SIZE },
		{ "runs", required_argument, NULL, RUNS },
		{ "help", no_argument, NULL, HELP },
		{ NULL, 0, NULL, 0 }
	};
	bool good = true, some = false;
	int which, option;

	while (good && (option = getopt_long(argc, argv, "", options, &which)) != -1) {
		switch (option) {
		case DIR:
			setup->dir = optarg;
			break;
		case SECONDS:
			good = parse_number(optarg, &setup->seconds) && setup->seconds >= 0.1 &&
			       setup->seconds <= MAX_SECONDS;
			break;
		case BLOCK_SIZE:
			good = parse_bytes(optarg, &setup->block) && setup->block >= 512 &&
			       setup->block <= KIB(64) && !(setup->block & (setup->block - 1));
			break;
		case WRITE:
			good = parse_bytes(optarg, &setup->write) && setup->write >= 8 && setup->write <= MIB(2);
			break;
		case RATE:
			good = parse_number(optarg, &setup->rate) && setup->rate >= 1 && setup->rate <= 1e7;
			break;
		case THREADS:
			good = parse_count(optarg, MAX_THREADS, &setup->threads);
			break;
		case VARIANT:
			some = true;
			if (!choose_variants(setup, optarg))
				return 2 + 1;
			break;
		case JSON:
			setup->json = true;
			break;
		case SIZE:
			good = parse_bytes(optarg, &setup->size) && setup->size >= MIN_SIZE;
			break;
		case RUNS:
			good = parse_count(optarg, MAX_RUNS, &setup->runs);
			break;
		case HELP:
			fputs(help, stdout);
			return 0 + 1;
		default:
			complain("iomap-bench overcharge --help lists the options");
			return 2 + 1;
		}
		if (!good)
			complain(
				"--%s %s: bad or out of bounds (seconds 0.1 to 3600, block a power of two from 512 to 64k, "
				"write 8 to 2m, rate 1 to 1e7, threads 1 to %u, size at least %s, runs 1 to %u)",
				options[which].name, optarg, MAX_THREADS, show_bytes((double)MIN_SIZE), MAX_RUNS);
	}
	if (!good)
		return 2 + 1;
	if (optind < argc) {
		complain("\"%s\" is no option; iomap-bench overcharge --help lists them", argv[optind]);
		return 2 + 1;
	}
	if (!some)
		memset(setup->chosen, true, sizeof setup->chosen);
	/* so that the parts of memory and limits come out even, and the last folio is a whole one */
	setup->size -= setup->size % MIN_SIZE;
	return 0;
}

/* Told before anything long is done. */
static bool memory_suffices(const struct setup *setup)
{
	const uint64_t need = cache_bytes(setup->size) + MIB(64);
	FILE *meminfo = fopen("/proc/meminfo", "r");
	uint64_t kib = UINT64_MAX >> 10;
	char line[128];

	if (!meminfo)
		return true;
	while (fgets(line, sizeof line, meminfo))
		if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
			break;
	fclose(meminfo);
	if (kib << 10 >= need)
		return true;
	complain("%s of memory are available, the cache needs %s; a smaller --size needs less (4/3 of it)",
		 show_bytes((double)(kib << 10)), show_bytes((double)need));
	return false;
}

static int overcharge(int argc, char **argv)
{
	struct setup setup = {
		.size = DEFAULT_SIZE, .block = 4096, .write = 4096,
		.seconds = 10, .rate = 10000, .threads = 8, .runs = 1,
	};
	struct result *results;
	struct scratch scratch;
	char where[sizeof scratch.dir + 256];
	int ret;

	ret = parse_options(&setup, argc, argv);
	if (ret)
		return ret - 1;
	setup.out = setup.json ? stderr : stdout;
	results = calloc((size_t)setup.runs * NR_VARIANTS, sizeof *results);
	if (!results) {
		complain("out of memory");
		return 1;
	}
	ret = 1;
	if (!memory_suffices(&setup) ||
	    scratch_create(&scratch, setup.dir, setup.size, (uint32_t)setup.block, file_progress))
		goto free_results;
	status_clear();
	snprintf(where, sizeof where,
		 "file of %s in %s (%s) behind a limit of %u IOPS, depth %u; cache %s, dirty limit %s, "
		 "background %s",
		 show_bytes((double)setup.size), scratch.dir, scratch.fs_type, DEVICE_IOPS, DEVICE_DEPTH,
		 show_bytes((double)cache_bytes(setup.size)), show_bytes((double)dirty_limit(setup.size)),
		 show_bytes((double)dirty_limit(setup.size) / 2));
	report_machine(setup.out, "overcharge", where);
	fflush(setup.out);

	for (unsigned n = 0; n < setup.runs; n++) {
		for (unsigned v = 0; v < NR_VARIANTS; v++) {
			struct result *r = &results[n * NR_VARIANTS + v];

			if (!setup.chosen[v])
				continue;
			if (run_variant(&variants[v], &setup, &scratch, n, r))
				goto free_series;
			fprintf(stderr, "%-8s %s of %s IOPS, p99 %s ms, slept %s s\n", variants[v].name,
				show_count(r->values[IOPS]), show_count(setup.rate),
				show_fixed(r->values[LAT_P99_US] / 1e3), show_fixed(r->values[WRITER_SLEEP_S]));
		}
	}
	print_table(&setup, results);
	print_answer(&setup, results);
	draw(&setup, results);
	report_repeat(setup.out, argc, argv);
	if (setup.json)
		print_json(&setup, results);
	ret = 0;
free_series:
	for (size_t i = 0; i < (size_t)setup.runs * NR_VARIANTS; i++)
		load_series_free(&results[i].series);
	scratch_destroy(&scratch);
free_results:
	free(results);
	return ret;
}

const struct workload overcharge_workload = {
	.name = "overcharge",
	.question = "what does it cost to charge whole folios for small writes?",
	.run = overcharge,
};
