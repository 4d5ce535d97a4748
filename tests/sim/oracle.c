/*
 * oracle.c - what a file may show
 *
 * Every change is kept as an interval in time over a range of bytes. For one byte the *candidates* of a read are the changes of
 * it that had begun when the read ended, without those that were surely overwritten when it began: another one began after
 * their end, and ended before the read's begin. After a crash the same with "surely durable" for "ended".
 *
 *      time -->     |--- W1 ---|                       |-- read --|
 *                         |--- W2 ---|                                  W1 or W2 (they overlap), not what was before,
 *                                           |------- W3 -------|        or W3
 *
 * A block of the file (for an image: a sector of the disk) is read at one moment: all its bytes come from one order of those
 * changes. So for a block with several candidates the possible orders are tried until one explains all its bytes.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "oracle.h"
#include "sim.h"

#define PERIOD          65521u          /* of the pattern: prime, so that bytes at a wrong place show */
#define TABLE_BYTES     (PERIOD + 65536u)
#define NOT_YET         UINT64_MAX
#define ORDER_MOST      6               /* changes of one block whose orders are tried */
#define SIZES           ORACLE_OPS

struct change {
	uint64_t pos, end;              /* of bytes; a cut goes to the end of the world */
	uint64_t begun, ended;          /* stamps; ended NOT_YET: under way */
	uint64_t new_size;              /* CUT: this; WRITE: at least this, its end */
	unsigned id;                    /* of the pattern; 0: zeros */
	uint64_t shift;                 /* the pattern is that of so many bytes before */
	bool cut, resizes;
	bool keeps_size;                /* and never moves it, whatever the size becomes meanwhile */
	bool durable;                   /* by itself: DSYNC */
	bool stored;                    /* with the device by itself: direct, write-through */
	bool direct;                    /* where it fails, half a block may be written */
	bool perhaps;                   /* it returned an error: it may have happened or not */
	bool running;
};

struct ofile {
	uint32_t block;
	bool unstable;
	struct change change[ORACLE_OPS];
	unsigned nr;
	unsigned resizing;              /* changes of the size under way */
	unsigned burst;                 /* … and that were since the size was known */
	uint64_t size;                  /* when none was under way last */
	uint64_t maybe[SIZES];          /* sizes it may have had since then */
	unsigned nr_maybe;
	uint64_t synced;                /* begin of the latest successful sync */
	/* sizes for a crash: all since the one that was settled when the latest successful sync began */
	struct { uint64_t stamp, size; bool settled; } past[ORACLE_OPS];
	unsigned nr_past;
	struct { uint64_t from, to; } zeros[ORACLE_OPS];        /* ranges that showed zeros below the size */
	unsigned nr_zeros;
	bool errors;
	bool vague;                     /* a write failed half way: any size between is possible */
};

static struct ofile files[ORACLE_FILES];
static uint64_t stamp;
static unsigned last_id;
static unsigned char table[TABLE_BYTES];

static uint64_t now(void) { return ++stamp; }

void oracle_start(void)
{
	if (!table[1]) {
		struct sim_rng r;

		sim_rng_seed(&r, 20, 20);
		for (unsigned i = 0; i < PERIOD; i++)
			table[i] = (unsigned char)(1 + sim_below(&r, 255));
		for (unsigned i = PERIOD; i < TABLE_BYTES; i++)
			table[i] = table[i - PERIOD];
	}
	memset(files, 0, sizeof(files));
	stamp = 0;
	last_id = 0;
}

static const unsigned char *pattern_at(unsigned id, uint64_t pos, size_t *n)
{
	static const unsigned char zeros[65536];

	if (*n > sizeof(zeros))
		*n = sizeof(zeros);
	return id ? table + (pos + (uint64_t)id * 7919) % PERIOD : zeros;
}

void oracle_pattern(unsigned id, uint64_t pos, void *buf, size_t len)
{
	for (size_t done = 0, n; done < len; done += n) {
		n = len - done;
		const unsigned char *p = pattern_at(id, pos + done, &n);

		memcpy((char *)buf + done, p, n);
	}
}

static bool is_pattern(unsigned id, uint64_t pos, const unsigned char *buf, size_t len)
{
	for (size_t done = 0, n; done < len; done += n) {
		n = len - done;
		const unsigned char *p = pattern_at(id, pos + done, &n);

		if (memcmp(buf + done, p, n))
			return false;
	}
	return true;
}

static bool matches(const struct change *c, uint64_t pos, const unsigned char *buf, size_t len)
{
	return is_pattern(c->id, pos - c->shift, buf, len);
}

/* --- changes ---------------------------------------------------------------------------------------------- */

static struct change *add(struct ofile *f, bool cut, uint64_t pos, uint64_t end, unsigned id)
{
	struct change *c = &f->change[f->nr++];

	*c = (struct change){ .cut = cut, .pos = pos, .end = end, .new_size = cut ? pos : end, .id = id, .begun = now(),
			      .ended = NOT_YET, .running = true };
	return c;
}

static void note_size(struct ofile *f, uint64_t size)
{
	for (unsigned i = 0; i < f->nr_maybe; i++)
		if (f->maybe[i] == size)
			return;
	if (f->nr_maybe < SIZES)
		f->maybe[f->nr_maybe++] = size;
}

static void note_past(struct ofile *f, uint64_t size, bool settled)
{
	if (f->nr_past < ORACLE_OPS) {
		sim_trace("file %u %s size %llu at stamp %llu", (unsigned)(f - files), settled ? "has" : "may get",
			  (unsigned long long)size, (unsigned long long)stamp);
		f->past[f->nr_past].settled = settled;
		f->past[f->nr_past].stamp = stamp;
		f->past[f->nr_past++].size = size;
	}
}

static void note_zeros(struct ofile *f, uint64_t from, uint64_t to)
{
	if (from < to && f->nr_zeros < ORACLE_OPS) {
		f->zeros[f->nr_zeros].from = from;
		f->zeros[f->nr_zeros++].to = to;
	}
}

static uint64_t least_size(const struct ofile *f)
{
	uint64_t least = f->size;

	for (unsigned i = 0; i < f->nr_maybe; i++)
		if (f->maybe[i] < least)
			least = f->maybe[i];
	return least;
}

static uint64_t most_size(const struct ofile *f)
{
	uint64_t most = f->size;

	for (unsigned i = 0; i < f->nr_maybe; i++)
		if (f->maybe[i] > most)
			most = f->maybe[i];
	return most;
}

unsigned oracle_create(unsigned file, uint32_t block, uint64_t size, bool unstable)
{
	struct ofile *f = &files[file];
	struct change *c;

	f->block = block;
	f->unstable = unstable;
	f->nr_past = f->nr_zeros = 0;
	c = add(f, true, 0, UINT64_MAX, 0);     /* the zeros beyond any end */
	c->ended = now();
	c->running = false;
	if (size) {
		c = add(f, false, 0, size, ++last_id);
		c->ended = now();
		c->running = false;
	}
	f->size = size;
	note_past(f, size, true);
	f->synced = now();
	return size ? last_id : 0;
}

static void resize_begin(struct ofile *f, struct change *c)
{
	c->resizes = true;
	f->resizing++;
	f->burst++;
	note_size(f, c->new_size);
	note_past(f, c->new_size, false);
}

unsigned oracle_write_begin(unsigned file, uint64_t pos, uint64_t len, unsigned promise)
{
	struct ofile *f = &files[file];
	struct change *c;

	if (f->nr + 2 > ORACLE_OPS)
		return ORACLE_FULL;
	c = add(f, false, pos, pos + len, ++last_id);
	c->durable = promise & ORACLE_DURABLE;
	c->stored = promise & ORACLE_STORED;
	c->direct = promise & ORACLE_DIRECT;
	sim_trace("write %u: file %u [%llu, %llu)", c->id, file, (unsigned long long)pos, (unsigned long long)(pos + len));
	if (pos + len > least_size(f)) {
		note_zeros(f, least_size(f), pos);
		resize_begin(f, c);
	}
	return c->id;
}

static struct change *find(struct ofile *f, unsigned id)
{
	for (unsigned i = f->nr; i-- > 0; )
		if (f->change[i].id == id && f->change[i].running)
			return &f->change[i];
	sim_fail("the oracle does not know change %u", id);
}

/* The change alone moved the size: it is known. Else whoever looks next tells. */
static void resize_end(struct ofile *f, const struct change *c, bool whole)
{
	f->resizing--;
	if (f->resizing || f->burst != 1 || !whole)
		return;
	f->size = c->cut || c->new_size > f->size ? c->new_size : f->size;
	f->nr_maybe = f->burst = 0;
	note_past(f, f->size, true);
}

void oracle_size_is_vague(unsigned file) { files[file].vague = true; }

void oracle_write_end(unsigned file, unsigned id, int64_t ret)
{
	struct ofile *f = &files[file];
	struct change *c = find(f, id), *first = c;
	uint64_t len = c->end - c->pos, done = ret > 0 ? (uint64_t)ret : 0;

	if (done > len)
		sim_fail("a write of %llu bytes returned %lld", (unsigned long long)len, (long long)ret);
	c->running = false;
	c->ended = now();
	if (done < len) {
		struct change *rest = &f->change[f->nr];

		c->durable = c->stored = false;
		if (done) {
			*rest = *c;
			f->nr++;
			rest->pos += done;
			rest->resizes = false;
			c->end = c->pos + done;
			if (c->resizes) {
				note_size(f, c->end);
				note_past(f, c->end, false);
			}
			c = rest;
		}
		c->perhaps = true;
	}
	f->vague |= first->resizes && ret < 0;
	if (first->resizes)
		resize_end(f, first, done == len);
}

unsigned oracle_truncate_begin(unsigned file, uint64_t size)
{
	struct ofile *f = &files[file];
	struct change *c;

	if (f->nr + 2 > ORACLE_OPS)
		return ORACLE_FULL;
	/* Bytes beyond any size are zeros in any case; a cut says it of those it takes. */
	note_zeros(f, least_size(f), size);
	/* A write inside the file that is under way may now be one that grows it again. */
	for (unsigned i = 0; i < f->nr; i++)
		if (f->change[i].running && !f->change[i].resizes && !f->change[i].keeps_size)
			resize_begin(f, &f->change[i]);
	c = add(f, true, size, UINT64_MAX, 0);
	resize_begin(f, c);
	return (unsigned)(c - f->change);
}

void oracle_truncate_end(unsigned file, unsigned nr, int ret)
{
	struct ofile *f = &files[file];
	struct change *c = &f->change[nr];

	c->running = false;
	c->ended = now();
	c->perhaps = ret;
	resize_end(f, c, !ret);
}

unsigned oracle_clear_begin(unsigned file, uint64_t pos, uint64_t len, bool zeros, bool grows)
{
	struct ofile *f = &files[file];
	uint64_t end = pos + len;
	struct change *c;

	if (f->nr + 2 > ORACLE_OPS)
		return ORACLE_FULL;
	if (zeros)
		note_zeros(f, pos, end);
	if (grows)
		note_zeros(f, least_size(f), end);
	c = add(f, false, zeros ? pos : end, end, 0);
	c->keeps_size = !grows;
	if (grows && end > least_size(f))
		resize_begin(f, c);
	return (unsigned)(c - f->change);
}

void oracle_clear_end(unsigned file, unsigned nr, int ret)
{
	struct ofile *f = &files[file];
	struct change *c = &f->change[nr];

	c->running = false;
	c->ended = now();
	c->perhaps = ret;
	if (ret == -EOPNOTSUPP)
		c->pos = c->end;
	if (c->resizes)
		resize_end(f, c, !ret);
}

unsigned oracle_new_id(void) { return ++last_id; }

void oracle_appended(unsigned file, uint64_t begun, unsigned id, uint64_t made_for, uint64_t pos, uint64_t len)
{
	struct ofile *f = &files[file];
	struct change *c;

	if (f->nr + 2 > ORACLE_OPS)
		sim_fail("the oracle is full");
	c = add(f, false, pos, pos + len, id);
	c->begun = begun;
	c->ended = now();
	c->shift = pos - made_for;
	c->running = false;
	f->size = pos + len;
	note_past(f, f->size, true);
}

bool oracle_has_room(unsigned file) { return files[file].nr + 8 < ORACLE_OPS; }

bool oracle_size_is_settled(unsigned file, uint64_t *size)
{
	struct ofile *f = &files[file];

	*size = f->size;
	return !f->resizing && !f->nr_maybe;
}

bool oracle_busy(unsigned file) { return files[file].resizing; }

void oracle_check_size(unsigned file, uint64_t size)
{
	struct ofile *f = &files[file];
	bool known = size == f->size;

	if (f->resizing)
		return;
	for (unsigned i = 0; i < f->nr_maybe; i++)
		known |= f->maybe[i] == size;
	known |= f->vague && size >= least_size(f) && size <= most_size(f);
	if (!known)
		sim_fail("file %u has size %llu; it should be %llu", file, (unsigned long long)size,
			 (unsigned long long)(f->nr_maybe ? f->maybe[0] : f->size));
	if (f->nr_maybe) {
		f->size = size;
		f->nr_maybe = f->burst = 0;
		f->vague = false;
		now();
		note_past(f, size, true);
	}
}

/* --- what may be seen ------------------------------------------------------------------------------------- */

/* When a change is surely there: for a read when it ended, for an image when it was surely durable. */
struct view {
	uint64_t since;                 /* what was there before this is not optional */
	bool image;
	bool killed;                    /* the image of a process that died: what the device had is there */
	bool torn;                      /* contents may have changed in flight: each byte by itself */
	bool loose;                     /* writes may have failed half way: no order explains a sector */
	const struct change *c[ORACLE_OPS];     /* those that touch the bytes looked at */
	unsigned nr;
};

static void look(struct view *v, const struct ofile *f, uint64_t pos, uint64_t end)
{
	v->nr = 0;
	for (unsigned i = 0; i < f->nr; i++)
		if (f->change[i].pos < end && pos < f->change[i].end)
			v->c[v->nr++] = &f->change[i];
}

static bool is_there(const struct view *v, const struct change *c)
{
	return !c->perhaps && c->ended != NOT_YET && (c->ended < v->since || (v->image && c->durable) || (v->killed && c->stored));
}

static bool overwritten(const struct view *v, const struct change *c, uint64_t pos)
{
	for (unsigned i = 0; i < v->nr; i++) {
		const struct change *o = v->c[i];

		if (o->pos <= pos && pos < o->end && c->ended < o->begun && is_there(v, o))
			return true;
	}
	return false;
}

struct set { const struct change *c[32]; unsigned nr; };

static void put(struct set *s, const struct change *c)
{
	for (unsigned i = 0; i < s->nr; i++)
		if (s->c[i] == c)
			return;
	if (s->nr < 32)
		s->c[s->nr++] = c;
}

/* The candidates at @pos, and in *@end where their list may change. */
static void candidates(const struct view *v, uint64_t pos, struct set *s, uint64_t *end)
{
	s->nr = 0;
	for (unsigned i = 0; i < v->nr; i++) {
		const struct change *c = v->c[i];

		if (c->pos > pos && c->pos < *end)
			*end = c->pos;
		if (c->pos > pos || c->end <= pos)
			continue;
		if (c->end < *end)
			*end = c->end;
		if (!overwritten(v, c, pos))
			put(s, c);
	}
}

/* Does the last one of @order that covers each byte explain the piece? Bytes that none covers are not looked at. */
static bool explains(const struct change *const *order, unsigned nr, uint64_t pos, const unsigned char *buf, size_t len)
{
	while (len) {
		uint64_t end = pos + len;
		const struct change *top = NULL;

		for (unsigned i = nr; i-- > 0; ) {
			const struct change *c = order[i];

			if (c->pos > pos && c->pos < end)
				end = c->pos;
			if (c->pos <= pos && pos < c->end) {
				if (c->end < end)
					end = c->end;
				top = c;
				break;
			}
		}
		if (top && !matches(top, pos, buf, (size_t)(end - pos)))
			return false;
		buf += end - pos;
		len -= (size_t)(end - pos);
		pos = end;
	}
	return true;
}

/* Tries to put one more of @s behind @order. */
static bool some_order(const struct view *v, const struct set *s, unsigned used, const struct change **order, unsigned nr,
		       uint64_t pos, const unsigned char *buf, size_t len)
{
	bool complete = true;

	for (unsigned i = 0; i < s->nr; i++)
		if (!(used >> i & 1) && is_there(v, s->c[i]))
			complete = false;
	if (complete && explains(order, nr, pos, buf, len))
		return true;
	for (unsigned i = 0; i < s->nr; i++) {
		bool early = false;

		if (used >> i & 1)
			continue;
		for (unsigned k = 0; k < nr; k++)       /* it ended before one that stands before it began */
			early |= s->c[i]->ended < order[k]->begun;
		if (early)
			continue;
		order[nr] = s->c[i];
		if (some_order(v, s, used | 1U << i, order, nr + 1, pos, buf, len))
			return true;
	}
	return false;
}

static bool block_ok(const struct view *v, uint64_t pos, const unsigned char *buf, size_t len)
{
	const struct change *order[ORDER_MOST];
	struct set all = { .nr = 0 };
	bool open = false, mixed = false;
	uint64_t end;

	for (uint64_t at = pos; at < pos + len; at = end) {
		struct set s;
		bool one = false;

		end = pos + len;
		candidates(v, at, &s, &end);
		bool torn = v->torn;

		for (unsigned i = 0; i < s.nr; i++)
			torn |= s.c[i]->direct && s.c[i]->perhaps;
		for (uint64_t b = at; torn && b < end; b++) {
			bool some = false;

			for (unsigned i = 0; i < s.nr; i++)
				some |= matches(s.c[i], b, buf + (b - pos), 1);
			if (!some)
				return false;
		}
		one = torn;
		mixed |= torn;
		for (unsigned i = 0; i < s.nr; i++) {
			put(&all, s.c[i]);
			one |= matches(s.c[i], at, buf + (at - pos), (size_t)(end - at));
		}
		open |= s.nr > 1;
		if (!one)
			return false;
	}
	if (!open || v->loose || mixed || all.nr > ORDER_MOST)
		return true;
	return some_order(v, &all, 0, order, 0, pos, buf, len);
}

static void say_what_is_there(const struct view *v, uint64_t pos, const unsigned char *buf, size_t len, char *out, size_t room)
{
	uint64_t end;
	int n = 0;

	for (uint64_t at = pos; at < pos + len && (size_t)n + 200 < room; at = end) {
		struct set s;

		end = pos + len;
		candidates(v, at, &s, &end);
		n += snprintf(out + n, room - (size_t)n, "\n    [%llu, %llu) may be of", (unsigned long long)at,
			      (unsigned long long)end);
		for (unsigned i = 0; i < s.nr && (size_t)n + 100 < room; i++)
			n += snprintf(out + n, room - (size_t)n, " %u", s.c[i]->id);
		n += snprintf(out + n, room - (size_t)n, "; is of");
		for (unsigned id = 0; id <= last_id && (size_t)n + 100 < room; id++)
			if (is_pattern(id, at, buf + (at - pos), (size_t)(end - at)))
				n += snprintf(out + n, room - (size_t)n, " %u", id);
	}
}

/* The first byte at which a unit of @unit bytes is not as it may be, or @end. */
static uint64_t first_wrong(const struct view *v, uint32_t unit, uint64_t pos, const unsigned char *buf, uint64_t end)
{
	for (uint64_t at = pos, next; at < end; at = next) {
		uint64_t first = at / unit * unit;
		struct set s;

		next = end;
		candidates(v, at, &s, &next);
		if (s.nr == 1 && !matches(s.c[0], at, buf + (at - pos), (size_t)(next - at))) {
			while (matches(s.c[0], at, buf + (at - pos), 1))
				at++;
			return at;
		}
		if (s.nr == 1)
			continue;
		if (first < pos)
			first = pos;
		next = (at / unit + 1) * unit;
		if (next > end)
			next = end;
		if (!block_ok(v, first, buf + (first - pos), (size_t)(next - first)))
			return first;
	}
	return end;
}

uint64_t oracle_read_begin(unsigned file)
{
	(void)file;
	return now();
}

void oracle_read_end(unsigned file, uint64_t since, uint64_t pos, size_t len, const void *buf, size_t n, bool may_be_short)
{
	struct ofile *f = &files[file];
	static struct view v;
	uint64_t wrong, least = least_size(f), most = most_size(f), end = pos + n;

	for (unsigned i = f->nr_past; i-- > 0; ) {
		if (f->past[i].size < least)
			least = f->past[i].size;
		if (f->past[i].size > most)
			most = f->past[i].size;
		if (f->past[i].stamp < since && f->past[i].settled)
			break;
	}
	if (end > most && n)
		sim_fail("read [%llu, +%zu) of file %u returned %zu bytes: beyond the size, %llu", (unsigned long long)pos, len, file, n,
			 (unsigned long long)most);
	if (n < len && end < least && !may_be_short)
		sim_fail("read [%llu, +%zu) of file %u returned only %zu bytes; its size is %llu", (unsigned long long)pos, len, file,
			 n, (unsigned long long)least);
	v.since = since;
	v.image = v.loose = v.killed = v.torn = false;
	look(&v, f, pos, end);
	wrong = first_wrong(&v, f->block, pos, buf, end);
	if (wrong < end) {
		const unsigned char *p = (const unsigned char *)buf + (wrong - pos);
		uint64_t next = (wrong / f->block + 1) * f->block;
		char what[1024] = "";

		next = next < end ? next : end;
		say_what_is_there(&v, wrong, p, (size_t)(next - wrong), what, sizeof(what));
		sim_fail("read [%llu, +%zu) of file %u: wrong bytes in [%llu, %llu)%s", (unsigned long long)pos, len, file,
			 (unsigned long long)wrong, (unsigned long long)next, what);
	}
}

void oracle_no_data(unsigned file, uint64_t since, uint64_t from, uint64_t to)
{
	static const unsigned char zeros[65536];

	for (uint64_t n; from < to; from += n) {
		n = to - from < sizeof(zeros) ? to - from : sizeof(zeros);
		oracle_read_end(file, since, from, (size_t)n, zeros, (size_t)n, true);
	}
}

uint64_t oracle_least_size(unsigned file) { return least_size(&files[file]); }

/* --- crashes ---------------------------------------------------------------------------------------------- */

uint64_t oracle_sync_begin(void) { return now(); }

void oracle_sync_end(unsigned file, uint64_t since)
{
	struct ofile *f = &files[file];

	sim_trace("file %u is synced as of stamp %llu", file, (unsigned long long)since);
	if (since > f->synced)
		f->synced = since;
}

void oracle_sync_range_end(unsigned file, uint64_t since, uint64_t pos, uint64_t end)
{
	struct ofile *f = &files[file];

	for (unsigned i = 0, nr = f->nr; i < nr; i++) {
		struct change *c = &f->change[i];

		if (c->perhaps || c->ended == NOT_YET || c->ended >= since || c->durable || c->cut || c->end <= pos || c->pos >= end)
			continue;
		/* What of it lies outside is a change of its own, which this says nothing of. */
		if (f->nr + 10 > ORACLE_OPS)
			return;
		if (c->pos < pos) {
			f->change[f->nr] = *c;
			f->change[f->nr].resizes = false;
			f->change[f->nr++].end = pos;
			c->pos = pos;
		}
		if (c->end > end) {
			f->change[f->nr] = *c;
			f->change[f->nr].resizes = false;
			f->change[f->nr++].pos = end;
			c->end = end;
		}
		c->durable = true;
	}
}

void oracle_had_errors(unsigned file) { files[file].errors = true; }

static bool size_ok(const struct ofile *f, uint64_t size)
{
	uint64_t least = UINT64_MAX, most = 0;

	for (unsigned i = f->nr_past; i-- > 0; ) {
		if (f->past[i].size < least)
			least = f->past[i].size;
		if (f->past[i].size > most)
			most = f->past[i].size;
		/* Settled before the sync began, and everything that began before that is over, too. */
		if (f->past[i].stamp < f->synced && f->past[i].settled) {
			bool running = false;

			for (unsigned k = 0; k < f->nr; k++)
				running |= f->change[k].resizes && f->change[k].begun <= f->past[i].stamp &&
					   (f->change[k].ended == NOT_YET || f->change[k].ended > f->synced);
			if (!running)
				break;
		}
	}
	return size >= least && size <= most;
}

static bool was_zeros(const struct ofile *f, uint64_t pos)
{
	for (unsigned i = 0; i < f->nr_zeros; i++)
		if (f->zeros[i].from <= pos && pos < f->zeros[i].to)
			return true;
	return false;
}

/* Some truncation took it: zeros again are a matter of the order of things, which first_wrong() has looked at. */
static bool was_cut(const struct ofile *f, uint64_t pos)
{
	for (unsigned i = 1; i < f->nr; i++)
		if (f->change[i].cut && f->change[i].pos <= pos)
			return true;
	return false;
}

const char *oracle_check_growth(unsigned file, const unsigned char *image, uint64_t from, uint64_t to)
{
	static char why[256];
	const struct ofile *f = &files[file];

	for (uint64_t at = from, next; !f->errors && at < to; at = next) {
		next = (at / 512 + 1) * 512 < to ? (at / 512 + 1) * 512 : to;
		if (is_pattern(0, at, image + at, (size_t)(next - at)) && !was_zeros(f, at) && !was_cut(f, at)) {
			snprintf(why, sizeof(why), "the process, killed now, leaves file %u with size %llu over bytes nobody wrote, "
				 "in [%llu, %llu)", file, (unsigned long long)to, (unsigned long long)at, (unsigned long long)next);
			return why;
		}
	}
	return NULL;
}

const char *oracle_check_bytes(unsigned file, const unsigned char *image, uint64_t pos, uint64_t end, bool killed, bool faults)
{
	static char why[2048];
	static struct view v;
	struct ofile *f = &files[file];
	uint64_t wrong, next;
	char what[1024] = "";

	v.since = f->synced;
	v.image = true;
	v.loose = faults;
	v.killed = killed;
	v.torn = f->unstable;
	look(&v, f, pos, end);
	wrong = first_wrong(&v, 512, pos, image, end);
	if (wrong >= end)
		return NULL;
	next = (wrong / 512 + 1) * 512 < end ? (wrong / 512 + 1) * 512 : end;
	say_what_is_there(&v, wrong, image + (wrong - pos), (size_t)(next - wrong), what, sizeof(what));
	snprintf(why, sizeof(why), "after a crash now file %u has wrong bytes in [%llu, %llu)%s", file, (unsigned long long)wrong,
		 (unsigned long long)next, what);
	return why;
}

const char *oracle_check_image(unsigned file, const unsigned char *image, uint64_t size, bool killed, bool faults)
{
	static char why[256];
	const char *wrong;

	if (!size_ok(&files[file], size)) {
		snprintf(why, sizeof(why), "after the crash file %u has size %llu, which it never had since the last sync", file,
			 (unsigned long long)size);
		return why;
	}
	wrong = oracle_check_bytes(file, image, 0, size, killed, faults);
	return !wrong && killed && !faults ? oracle_check_growth(file, image, 0, size) : wrong;
}
