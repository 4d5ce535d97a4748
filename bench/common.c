/*
 * common.c - time, random numbers, and numbers as people write and read them
 *
 * Nothing here knows a workload.
 */
#include "bench.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define SHOWN_RING 32
#define SHOWN_LEN  40

static uint64_t read_clock(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

uint64_t now_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

uint64_t thread_cpu_ns(void)
{
	return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

void sleep_until_ns(uint64_t when_ns)
{
	struct timespec ts = { (time_t)(when_ns / 1000000000), (long)(when_ns % 1000000000) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
		;
}

uint64_t rng_next(struct rng *rng)
{
	uint64_t z = rng->state += 0x9e3779b97f4a7c15;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

/* Uniform to 2^-64 of the bound, which no benchmark can see. */
uint64_t rng_below(struct rng *rng, uint64_t bound)
{
	return (uint64_t)(((unsigned __int128)rng_next(rng) * bound) >> 64);
}

bool parse_number(const char *text, double *out)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !isfinite(value))
		return false;
	*out = value;
	return true;
}

bool parse_bytes(const char *text, uint64_t *out)
{
	static const char units[] = "kmgt";
	char *end;
	double value = strtod(text, &end);

	if (end == text || !isfinite(value) || value < 0)
		return false;
	if (*end) {
		const char *unit = strchr(units, *end | 0x20);

		if (!unit || (end[1] && strcasecmp(end + 1, "b") && strcasecmp(end + 1, "ib")))
			return false;
		value = ldexp(value, 10 * (int)(unit - units + 1));
	}
	if (value >= 0x1p62)
		return false;
	*out = (uint64_t)llround(value);
	return true;
}

bool parse_count(const char *text, unsigned max, unsigned *out)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (end == text || *end || *text == '-' || value < 1 || value > max)
		return false;
	*out = (unsigned)value;
	return true;
}

static char *shown(void)
{
	static char ring[SHOWN_RING][SHOWN_LEN];
	static unsigned next;

	return ring[next++ % SHOWN_RING];
}

const char *show_fixed(double value)
{
	char *text = shown();
	double size = fabs(value);
	int digits = size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 || size == 0 ? 2 : 3;

	snprintf(text, SHOWN_LEN, "%.*f", size == 0 ? 0 : digits, value);
	return text;
}

const char *show_bytes(double bytes)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
	char *text = shown();
	unsigned unit = 0;

	while (bytes >= 1024 && unit + 1 < ARRAY_LEN(units)) {
		bytes /= 1024;
		unit++;
	}
	if (bytes == floor(bytes) && bytes < 10000)
		snprintf(text, SHOWN_LEN, "%.0f %s", bytes, units[unit]);
	else
		snprintf(text, SHOWN_LEN, "%s %s", show_fixed(bytes), units[unit]);
	return text;
}

/* 1234567.8 -> "1,234,568" */
const char *show_count(double count)
{
	char digits[SHOWN_LEN];
	char *text = shown();
	unsigned out = 0;
	size_t len;

	len = (size_t)snprintf(digits, sizeof digits, "%.0f", fmin(fabs(count), 1e18));
	if (count <= -0.5)
		text[out++] = '-';
	for (size_t i = 0; i < len; i++) {
		if (i && (len - i) % 3 == 0)
			text[out++] = ',';
		text[out++] = digits[i];
	}
	text[out] = 0;
	return text;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

struct spread spread_of(double *values, unsigned nr)
{
	if (!nr)
		return (struct spread){ 0, 0, 0 };
	qsort(values, nr, sizeof *values, by_value);
	return (struct spread){
		.median = nr % 2 ? values[nr / 2] : (values[nr / 2 - 1] + values[nr / 2]) / 2,
		.min = values[0],
		.max = values[nr - 1],
	};
}

void complain(const char *fmt, ...)
{
	va_list args;

	fputs("iomap-bench: ", stderr);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fputc('\n', stderr);
}
