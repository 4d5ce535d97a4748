/*
 * params-parse.c - cache params from one line of text
 *
 * Public entry point iomap_cache_params_parse(): one syntax for environment strings, mount options, plugins and tools.
 */
#include <errno.h>
#include <iomap/cache.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "util.h"

static int parse_bytes(const char *text, uint64_t max, uint64_t *out)
{
	static const char suffix[] = "kmgt";
	char *end;
	uint64_t v;
	const char *s;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	v = strtoull(text, &end, 10);
	if (errno)
		return -EINVAL;
	if (*end) {
		unsigned shift;

		s = strchr(suffix, *end | 0x20);
		if (!s || end[1])
			return -EINVAL;
		shift = 10 * (unsigned)(s - suffix + 1);
		if (v > UINT64_MAX >> shift)
			return -EINVAL;
		v <<= shift;
	}
	if (v > max)
		return -EINVAL;
	*out = v;
	return 0;
}

static int parse_word(const char *text, const char *const *words, unsigned nr, unsigned *out)
{
	for (unsigned i = 0; i < nr; i++)
		if (!strcmp(text, words[i])) {
			*out = i;
			return 0;
		}
	return -EINVAL;
}

static int parse_one(struct iomap_cache_params *p, const char *key, const char *value)
{
	static const char *const accounting[] = { "block", "page", "folio" };
	static const char *const write_policy[] = { "keep", "split", "evict" };
	static const char *const error_policy[] = { "keep_dirty", "drop" };
	static const char *const dontcache[] = { "kick", "naive", "ratelimit" };
	struct { const char *key; uint64_t *u64; unsigned *u; const char *off; } numbers[] = {
		{ "memory", &p->memory_bytes, NULL, NULL }, { "max_folio", &p->max_folio_bytes, NULL, NULL },
		{ "dirty", &p->dirty_bytes, NULL, NULL }, { "dirty_background", &p->dirty_background_bytes, NULL, NULL },
		{ "inflight", &p->inflight_bytes, NULL, NULL }, { "pinned", &p->pinned_bytes, NULL, NULL },
		{ "pinned_background", &p->pinned_background_bytes, NULL, NULL },
		{ "dirty_expire_ms", NULL, &p->dirty_expire_ms, NULL },
		{ "dirty_writeback_ms", NULL, &p->dirty_writeback_ms, "never" },
		{ "writeback_threads", NULL, &p->writeback_threads, NULL }, { "queue_depth", NULL, &p->queue_depth, NULL },
		{ "readahead", NULL, &p->readahead_bytes, "off" },
	};
	char name[40];
	size_t len = strlen(key);
	unsigned word;
	uint64_t v;
	int ret;

	if (len >= sizeof(name))
		return -EINVAL;
	memcpy(name, key, len + 1);
	if (len > 6 && !strcmp(name + len - 6, "_bytes"))
		name[len - 6] = '\0';
	for (unsigned i = 0; i < ARRAY_SIZE(numbers); i++) {
		if (strcmp(name, numbers[i].key))
			continue;
		if (numbers[i].off && !strcmp(value, numbers[i].off))
			v = UINT_MAX;
		else if ((ret = parse_bytes(value, numbers[i].u ? UINT_MAX : UINT64_MAX, &v)))
			return ret;
		if (numbers[i].u)
			*numbers[i].u = (unsigned)v;
		else
			*numbers[i].u64 = v;
		return 0;
	}
	if (!strcmp(name, "accounting") && !(ret = parse_word(value, accounting, 3, &word)))
		p->accounting = (enum iomap_accounting)word;
	else if (!strcmp(name, "write_policy") && !(ret = parse_word(value, write_policy, 3, &word)))
		p->write_policy = (enum iomap_write_policy)word;
	else if (!strcmp(name, "error_policy") && !(ret = parse_word(value, error_policy, 2, &word)))
		p->error_policy = (enum iomap_error_policy)word;
	else if (!strcmp(name, "dontcache") && !(ret = parse_word(value, dontcache, 3, &word)))
		p->dontcache = (enum iomap_dontcache)word;
	else if (!strcmp(name, "strict_limit") && (!strcmp(value, "0") || !strcmp(value, "1")))
		p->strict_limit = *value == '1';
	else
		return -EINVAL;
	return 0;
}

int iomap_cache_params_parse(struct iomap_cache_params *params, const char *text)
{
	struct iomap_cache_params p;
	char pair[128];

	if (!params || !text)
		return -EINVAL;
	p = *params;
	while (*text) {
		size_t len = strcspn(text, ",");
		char *equals;
		int ret;

		if (!len || len >= sizeof(pair))
			return -EINVAL;
		memcpy(pair, text, len);
		pair[len] = '\0';
		equals = strchr(pair, '=');
		if (!equals)
			return -EINVAL;
		*equals = '\0';
		ret = parse_one(&p, pair, equals + 1);
		if (ret)
			return ret;
		text += len;
		if (*text == ',' && !*++text)
			return -EINVAL;
	}
	*params = p;
	return 0;
}
