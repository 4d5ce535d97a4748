/*
 * load.c - threads that write to one file at a wanted rate, watched while they do
 *
 * Each thread follows its own schedule (pacer.h) and keeps its own histogram; nothing is shared but a stop flag and the
 * counts that the calling thread adds up while it samples the cache. A thread stops when its time is over, though a call
 * that sleeps in the throttle may return later.
 */
#include "load.h"
#include "bench.h"
#include "pacer.h"
#include "report.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <iomap/iomap.h>

#define SAMPLE_NS      (100 * 1000000ULL)
#define RATE_WINDOW    5                        /* samples that a rate over time is the mean of */
#define START_DELAY_NS (50 * 1000000ULL)        /* for all threads to be there at the start */

/* One thread; aligned so that two threads' counters are never on one cache line. */
struct writer {
	const struct load *load;
	_Atomic bool *stop;
	_Atomic unsigned *running;
	pthread_t thread;
	struct pacer pacer;
	struct rng rng;
	struct histogram latency;
	uint64_t end_ns;
	int error;
	_Alignas(64) _Atomic uint64_t done;
};

static void *write_at_random(void *arg)
{
	struct writer *w = arg;
	const struct load *load = w->load;
	uint64_t places = load->file_bytes / load->write_bytes;
	unsigned char *buf = malloc(load->write_bytes);

	if (!buf)
		w->error = -ENOMEM;
	else
		memset(buf, 'a' + (int)(w->rng.state % 26), load->write_bytes);
	pacer_thread_setup();

	while (!w->error && !*w->stop && pacer_wait(&w->pacer)) {
		uint64_t pos = rng_below(&w->rng, places) * load->write_bytes;
		uint64_t begin = now_ns();
		ssize_t ret = iomap_pwrite(load->file, buf, load->write_bytes, (off_t)pos);

		w->end_ns = now_ns();
		histogram_add(&w->latency, w->end_ns - begin);
		if (ret != (ssize_t)load->write_bytes)
			w->error = ret < 0 ? (int)ret : -EIO;
		else
			/* relaxed: for the live line; the final count is read after the thread was joined */
			atomic_fetch_add_explicit(&w->done, 1, memory_order_relaxed);
	}
	if (w->error)
		*w->stop = true;
	free(buf);
	--*w->running;
	return NULL;
}

static uint64_t writes_done(const struct writer *writers, unsigned nr)
{
	uint64_t done = 0;

	for (unsigned i = 0; i < nr; i++)
		done += atomic_load_explicit(&writers[i].done, memory_order_relaxed);
	return done;
}

static int series_alloc(struct load_series *s, double seconds)
{
	s->room = (unsigned)(seconds * 1e9 / (double)SAMPLE_NS) + RATE_WINDOW;
	s->seconds = calloc(s->room, sizeof *s->seconds);
	s->dirty_mib = calloc(s->room, sizeof *s->dirty_mib);
	s->iops = calloc(s->room, sizeof *s->iops);
	s->done = calloc(s->room, sizeof *s->done);
	return s->seconds && s->dirty_mib && s->iops && s->done ? 0 : -ENOMEM;
}

void load_series_free(struct load_series *s)
{
	free(s->seconds);
	free(s->dirty_mib);
	free(s->iops);
	free(s->done);
	*s = (struct load_series){ 0 };
}

/* Returns the rate. */
static double series_add(struct load_series *s, double seconds, uint64_t done, const struct iomap_cache_stat *st)
{
	unsigned from = s->nr >= RATE_WINDOW ? s->nr - RATE_WINDOW : 0;
	unsigned n = s->nr++;

	s->seconds[n] = seconds;
	s->done[n] = done;
	s->dirty_mib[n] = (double)(st->dirty_bytes + st->writeback_bytes) / (double)MIB(1);
	s->iops[n] = n ? (double)(done - s->done[from]) / (seconds - s->seconds[from]) : 0;
	if (n == 1)
		s->iops[0] = s->iops[1];                        /* there is no rate before the start */
	return s->iops[n];
}

/* Samples the cache and says how it goes until the last writer is done. */
static void watch(const struct load *load, const struct writer *writers, const _Atomic unsigned *running,
		  uint64_t start_ns, struct load_series *series)
{
	const unsigned quiet = status_is_live() ? 2 : (unsigned)(1000000000 / SAMPLE_NS);
	struct iomap_cache_stat st;

	for (unsigned n = 0; *running; n++) {
		double seconds, iops = 0;

		sleep_until_ns(start_ns + n * SAMPLE_NS);
		seconds = (double)(now_ns() - start_ns) / 1e9;
		if (iomap_cache_stat(load->cache, &st, sizeof st))
			continue;
		/* what comes after the wanted time is the last calls' return: shown, not drawn */
		if (series->nr < series->room && seconds < load->seconds + (double)SAMPLE_NS / 2e9)
			iops = series_add(series, seconds, writes_done(writers, load->threads), &st);
		if (n && n % quiet == 0)
			status("%-8s %5.1f s  %6s IOPS  dirty %-9s  charged %-9s  slept %s s", load->name, seconds,
			       show_count(iops), show_bytes((double)(st.dirty_bytes + st.writeback_bytes)),
			       show_bytes((double)(st.dirtied_bytes + st.redirtied_bytes)),
			       show_fixed((double)st.throttled_ns / 1e9));
	}
}

int load_run(const struct load *load, struct load_result *result, struct load_series *series)
{
	struct writer *writers = aligned_alloc(_Alignof(struct writer), load->threads * sizeof *writers);
	uint64_t start_ns, end_ns, last_ns;
	_Atomic unsigned running = 0;
	_Atomic bool stop = false;
	unsigned started;
	int ret;

	ret = writers ? series_alloc(series, load->seconds) : -ENOMEM;
	if (ret)
		goto free_writers;
	memset(writers, 0, load->threads * sizeof *writers);
	start_ns = now_ns() + START_DELAY_NS;
	end_ns = start_ns + (uint64_t)(load->seconds * 1e9);
	for (started = 0; started < load->threads; started++) {
		struct writer *w = &writers[started];

		w->load = load;
		w->stop = &stop;
		w->running = &running;
		w->rng.state = (load->seed << 32) + started;
		pacer_init(&w->pacer, start_ns, end_ns, load->rate, started, load->threads);
		++running;
		ret = -pthread_create(&w->thread, NULL, write_at_random, w);
		if (ret) {
			--running;
			stop = true;
			break;
		}
	}
	watch(load, writers, &running, start_ns, series);

	last_ns = end_ns;
	for (unsigned i = 0; i < started; i++) {
		struct writer *w = &writers[i];

		pthread_join(w->thread, NULL);
		histogram_merge(&result->latency, &w->latency);
		if (w->pacer.lag_max_ns > result->lag_max_ns)
			result->lag_max_ns = w->pacer.lag_max_ns;
		if (w->end_ns > last_ns)
			last_ns = w->end_ns;
		if (!ret)
			ret = w->error;
	}
	result->iops = (double)writes_done(writers, started) * 1e9 / (double)(last_ns - start_ns);
free_writers:
	free(writers);
	return ret;
}
