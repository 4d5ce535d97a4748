/*
 * main.c - iomap-sim: seeds, totals, and how a failing one is shown and made smaller
 *
 *      iomap-sim --seed N --count M            runs M worlds from seed N on
 *                --seconds S                   … as many as go into S seconds
 *                --jobs J                      in J processes
 *                --threads T                   T threads work in each world (by seed: 2 … 4)
 *                --crash --faults              all with power cuts, with failures (by seed: a third each)
 *                --sweep                       fails the n-th allocation, request, flush, thread start of a script; cuts its power
 *                --replay SEED[,SCHEDULE[,OPS]] one world, told step by step; OPS as 0-4,7
 *                --shrink                      fewer operations of the first seed that fails (--seed)
 *                --stop                        ends at the first failure
 *                --json                        nothing but the last line
 *
 * The last line is JSON; exit status 1 if something failed, 2 if the command line is wrong.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "world.h"

#define POWER_CUTS 500u                 /* of a sweep */

struct options {
	uint64_t seed, count;
	double seconds;
	unsigned threads, jobs;
	bool crash, faults, json, stop, sweep, shrink;
	const char *replay;
};

struct totals {
	uint64_t seeds, ops, threads, steps, switches, crashes, images, faults, failures, with_crash, with_faults, first_failure, hash;
};

static double seconds_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void spec_of(const struct options *o, uint64_t seed, struct world_spec *spec)
{
	*spec = (struct world_spec){ .seed = seed, .threads = o->threads };
	/* A third each; some both. */
	spec->crash = o->crash || (!o->faults && seed % 3 == 1);
	spec->faults = o->faults || (!o->crash && seed % 3 == 2);
	if (!o->crash && !o->faults && seed % 21 == 1)
		spec->faults = true;
}

/* --- replay and shrink ------------------------------------------------------------------------------------ */

static void print_kept(const struct world_spec *spec, unsigned nr)
{
	const char *comma = "";

	for (unsigned i = 0; i < nr; i++) {
		unsigned last = i;

		if (spec->left_out[i])
			continue;
		while (last + 1 < nr && !spec->left_out[last + 1])
			last++;
		printf(last > i ? "%s%u-%u" : "%s%u", comma, i, last);
		comma = ",";
		i = last;
	}
}

static void print_repeat(const struct options *o, const struct world_spec *spec, unsigned nr)
{
	printf("repeat with: build/sim/iomap-sim%s%s", o->crash ? " --crash" : "", o->faults ? " --faults" : "");
	if (o->threads)
		printf(" --threads %u", o->threads);
	printf(" --replay %llu,%llu", (unsigned long long)spec->seed, (unsigned long long)spec->schedule);
	if (spec->left_out) {
		printf(",");
		print_kept(spec, nr);
	}
	printf("\n");
}

static struct world_result result;

/* Does the world fail with these operations left out, with this schedule or one of a few others? */
static bool fails(struct world_spec *spec)
{
	uint64_t first = spec->schedule;

	for (unsigned i = 0; i < 12; i++) {
		world_run(spec, &result);
		if (result.failed)
			return true;
		spec->schedule = spec->seed * 1000 + i + 1;
	}
	spec->schedule = first;
	return false;
}

/* Leaves out more and more operations while the world still fails: halves, quarters, … single ones. */
static void shrink(const struct options *o, uint64_t seed)
{
	static bool left_out[WORLD_OPS], tried[WORLD_OPS];
	struct world_spec spec;
	unsigned nr, kept;
	char text[160];

	spec_of(o, seed, &spec);
	nr = world_ops(&spec);
	memset(left_out, 0, sizeof(left_out));
	spec.left_out = tried;
	for (unsigned size = nr / 2; size; size /= 2) {
		for (unsigned at = 0; at < nr; at += size) {
			bool any = false;

			memcpy(tried, left_out, sizeof(tried));
			for (unsigned i = at; i < at + size && i < nr; i++) {
				any |= !tried[i];
				tried[i] = true;
			}
			if (any && fails(&spec))
				memcpy(left_out, tried, sizeof(left_out));
		}
	}
	spec.left_out = left_out;
	kept = 0;
	for (unsigned i = 0; i < nr; i++)
		kept += !left_out[i];
	if (!fails(&spec)) {
		spec_of(o, seed, &spec);
		printf("seed %llu does not shrink\n", (unsigned long long)seed);
		return;
	}
	printf("%u of %u operations are enough:\n", kept, nr);
	for (unsigned i = 0; i < nr; i++) {
		if (left_out[i])
			continue;
		world_describe(&spec, i, text, sizeof(text));
		printf("  %3u %s\n", i, text);
	}
	printf("%s\n", result.sim.report);
	print_repeat(o, &spec, nr);
}

static int replay(const struct options *o)
{
	static bool left_out[WORLD_OPS];
	char *end = NULL;
	struct world_spec spec;
	uint64_t seed = strtoull(o->replay, &end, 0);

	spec_of(o, seed, &spec);
	if (*end == ',')
		spec.schedule = strtoull(end + 1, &end, 0);
	if (*end == ',') {
		memset(left_out, 1, sizeof(left_out));
		while (*end == ',') {
			unsigned long from = strtoul(end + 1, &end, 0), to = from;

			if (*end == '-')
				to = strtoul(end + 1, &end, 0);
			for (; from <= to && from < WORLD_OPS; from++)
				left_out[from] = false;
		}
		spec.left_out = left_out;
	}
	if (*end) {
		fprintf(stderr, "iomap-sim: --replay SEED[,SCHEDULE[,OPS]], not \"%s\"\n", o->replay);
		return 2;
	}
	spec.trace = !o->json;
	world_run(&spec, &result);
	printf("%s\n", result.failed ? result.sim.report : "no failure");
	return result.failed;
}

/* --- many ------------------------------------------------------------------------------------------------- */

static void add_result(struct totals *t, uint64_t seed, const struct world_spec *spec, const struct world_result *r)
{
	uint64_t h = (r->sim.hash ^ seed) * UINT64_C(0x9e3779b97f4a7c15);

	t->seeds++;
	t->ops += r->ops;
	t->threads += r->threads;
	t->steps += r->sim.steps;
	t->switches += r->sim.switches;
	t->crashes += r->crashes;
	t->images += r->images;
	t->faults += r->faults;
	t->failures += r->failed;
	t->with_crash += spec->crash;
	t->with_faults += spec->faults;
	if (r->failed && (!t->first_failure || seed < t->first_failure))
		t->first_failure = seed;
	t->hash ^= h ^ (h >> 31);       /* in any order: jobs end when they like */
}

static void show_failure(const struct options *o, uint64_t seed, const struct world_spec *spec)
{
	fflush(stdout);
	if (o->json)
		return;
	printf("\nseed %llu FAILED after %llu steps: %s\n", (unsigned long long)seed, (unsigned long long)result.sim.steps,
	       result.sim.report);
	print_repeat(o, spec, 0);
}

static void run_seeds(const struct options *o, unsigned job, struct totals *t)
{
	double begin = seconds_now(), shown = begin;

	for (uint64_t i = job; i < o->count; i += o->jobs) {
		struct world_spec spec;

		if (o->seconds > 0 && seconds_now() - begin > o->seconds)
			break;
		spec_of(o, o->seed + i, &spec);
		world_run(&spec, &result);
		add_result(t, o->seed + i, &spec, &result);
		if (result.failed) {
			show_failure(o, o->seed + i, &spec);
			if (o->stop)
				break;
		}
		if (!o->json && !job && seconds_now() - shown > 2) {
			shown = seconds_now();
			fprintf(stderr, "\r%llu seeds in job 0, %.0f/s, %llu failures ", (unsigned long long)t->seeds,
				(double)t->seeds / (shown - begin), (unsigned long long)t->failures);
		}
	}
}

static void add_totals(struct totals *sum, const struct totals *t)
{
	sum->seeds += t->seeds;
	sum->ops += t->ops;
	sum->threads += t->threads;
	sum->steps += t->steps;
	sum->switches += t->switches;
	sum->crashes += t->crashes;
	sum->images += t->images;
	sum->faults += t->faults;
	sum->failures += t->failures;
	sum->with_crash += t->with_crash;
	sum->with_faults += t->with_faults;
	if (t->first_failure && (!sum->first_failure || t->first_failure < sum->first_failure))
		sum->first_failure = t->first_failure;
	sum->hash ^= t->hash;
}

static bool run_jobs(const struct options *o, struct totals *sum)
{
	int out[64][2];
	bool ok = true;

	for (unsigned j = 0; j < o->jobs; j++) {
		pid_t pid;

		if (pipe(out[j]) || (pid = fork()) < 0) {
			perror("iomap-sim");
			exit(2);
		}
		if (!pid) {
			struct totals t = { 0 };

			run_seeds(o, j, &t);
			fflush(stdout);
			_exit(write(out[j][1], &t, sizeof(t)) != sizeof(t));
		}
		close(out[j][1]);
	}
	for (unsigned j = 0; j < o->jobs; j++) {
		struct totals t;

		if (read(out[j][0], &t, sizeof(t)) == sizeof(t))
			add_totals(sum, &t);
		else
			ok = false;
		close(out[j][0]);
	}
	while (wait(NULL) > 0)
		;
	if (!ok) {
		fprintf(stderr, "iomap-sim: a job died\n");
		sum->failures++;
	}
	return ok;
}

/* --- sweeps ----------------------------------------------------------------------------------------------- */

static void sweep(const struct options *o, struct totals *t)
{
	static const char *const names[SIM_FAULTS] = { "allocation", "read", "write", "flush", "thread start", "space" };
	struct world_spec spec = { .seed = o->seed, .script = true };
	uint64_t events[SIM_FAULTS], steps;
	unsigned cuts = 0;

	world_run(&spec, &result);
	add_result(t, 0, &spec, &result);
	if (result.failed) {
		show_failure(o, 0, &spec);
		return;
	}
	memcpy(events, result.sim.events, sizeof(events));
	steps = result.sim.steps;
	for (unsigned i = 0; i < SIM_FAULTS; i++) {
		unsigned failures = 0;

		for (uint64_t n = 1; n <= events[i] + 4; n++) {
			spec = (struct world_spec){ .seed = o->seed, .script = true, .schedule = n };
			spec.fail_nth[i] = n;
			world_run(&spec, &result);
			add_result(t, n, &spec, &result);
			if (result.failed && !failures++ && !o->json)
				printf("\nfailing the %llu. %s: %s\n", (unsigned long long)n, names[i], result.sim.report);
		}
		if (!o->json)
			printf("%-14s %4llu in the script, each failed once: %u failures\n", names[i],
			       (unsigned long long)events[i], failures);
	}
	for (unsigned k = 1; k < POWER_CUTS; k++) {
		spec = (struct world_spec){ .seed = o->seed, .script = true, .crash = true, .power_off_at = steps * k / POWER_CUTS };
		world_run(&spec, &result);
		add_result(t, k, &spec, &result);
		if (result.failed && !cuts++ && !o->json)
			printf("\npower cut at step %llu: %s\n", (unsigned long long)spec.power_off_at, result.sim.report);
	}
	if (!o->json)
		printf("%-14s %4u over the script: %u failures\n", "power cut", POWER_CUTS - 1, cuts);
}

/* --- the rest --------------------------------------------------------------------------------------------- */

static void print_totals(const struct options *o, const struct totals *t, double seconds)
{
	double n = t->seeds ? (double)t->seeds : 1;

	if (!o->json) {
		printf("\nper seed: %.0f operations, %.1f threads that work, %.0f steps, %.0f switches; %.0f %% with power cuts, "
		       "%.0f %% with faults\n", (double)t->ops / n, (double)t->threads / n, (double)t->steps / n, (double)t->switches / n,
		       100 * (double)t->with_crash / n, 100 * (double)t->with_faults / n);
		if (t->first_failure)
			printf("smallest failing seed: %llu\n", (unsigned long long)t->first_failure);
	}
	printf("{\"seeds\":%llu,\"ops\":%llu,\"steps\":%llu,\"crashes\":%llu,\"crash_images\":%llu,\"faults\":%llu,\"failures\":%llu,"
	       "\"seeds_per_s\":%.1f,\"trace_hash\":\"%016llx\"}\n", (unsigned long long)t->seeds, (unsigned long long)t->ops,
	       (unsigned long long)t->steps, (unsigned long long)t->crashes, (unsigned long long)t->images,
	       (unsigned long long)t->faults, (unsigned long long)t->failures, seconds > 0 ? n / seconds : 0,
	       (unsigned long long)t->hash);
}

static uint64_t number(const char *option, const char *text)
{
	char *end;
	uint64_t n = strtoull(text, &end, 0);

	if (*end || end == text) {
		fprintf(stderr, "iomap-sim: --%s wants a number, not \"%s\"\n", option, text);
		exit(2);
	}
	return n;
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "seed", 1, NULL, 's' }, { "count", 1, NULL, 'n' }, { "seconds", 1, NULL, 'S' }, { "jobs", 1, NULL, 'j' },
		{ "threads", 1, NULL, 't' }, { "crash", 0, NULL, 'c' }, { "faults", 0, NULL, 'f' }, { "sweep", 0, NULL, 'w' },
		{ "replay", 1, NULL, 'r' }, { "shrink", 0, NULL, 'k' }, { "stop", 0, NULL, 'x' }, { "json", 0, NULL, 'J' },
		{ NULL, 0, NULL, 0 },
	};
	struct options o = { .seed = 1, .jobs = 1 };
	struct totals t = { 0 };
	double begin = seconds_now();
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (c) {
		case 's': o.seed = number("seed", optarg); break;
		case 'n': o.count = number("count", optarg); break;
		case 'S': o.seconds = (double)number("seconds", optarg); break;
		case 'j': o.jobs = (unsigned)number("jobs", optarg); break;
		case 't': o.threads = (unsigned)number("threads", optarg); break;
		case 'c': o.crash = true; break;
		case 'f': o.faults = true; break;
		case 'w': o.sweep = true; break;
		case 'r': o.replay = optarg; break;
		case 'k': o.shrink = true; break;
		case 'x': o.stop = true; break;
		case 'J': o.json = true; break;
		default: return 2;
		}
	}
	if (optind < argc || o.jobs < 1 || o.jobs > 64 || o.threads > 4) {
		fprintf(stderr, "iomap-sim: see the head of tests/sim/main.c; 1 to 64 jobs, at most 4 threads\n");
		return 2;
	}
	if (!o.count)
		o.count = o.seconds > 0 ? UINT64_MAX / 2 : 1;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (o.replay)
		return replay(&o);
	if (o.shrink) {
		shrink(&o, o.seed);
		return 1;
	}
	if (o.sweep)
		sweep(&o, &t);
	else if (o.jobs == 1)
		run_seeds(&o, 0, &t);
	else
		run_jobs(&o, &t);
	print_totals(&o, &t, seconds_now() - begin);
	return t.failures != 0;
}
