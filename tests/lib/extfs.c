/*
 * extfs.c - a tiny extent filesystem
 *
 * A file has two sorted lists of extents. `data` is what it holds: delayed (reserved, no place yet), unwritten or mapped; a gap is
 * a hole. `copies` is where writes to shared blocks will go: delayed, or with a place; end_io() moves a copy into `data` once its
 * bytes are there. A block of the device counts in refs how many places in all lists point to it.
 *
 *      begin(WRITE) over a hole:       data gets DELAYED                       reserved + n
 *      begin(WRITE) over shared:       copies gets DELAYED                     reserved + n
 *      writeback_range():              DELAYED -> UNWRITTEN with a place       reserved - n, free - n
 *      end_io():                       UNWRITTEN -> MAPPED; copies -> data, what was there loses a reference
 *
 * Every change of a file's lists bumps its sequence number, the cookie of its mappings. The lists have room for every block of the
 * device, so no change of them can fail.
 *
 * Locking: fs->lock for everything; a leaf, held for no I/O but poke and peek, which only copy memory.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifndef FALLOC_FL_KEEP_SIZE
#include <linux/falloc.h>
#endif
#include "extfs.h"
#include "platform.h"

#define NOWHERE         UINT64_MAX
#define END_OF_FILE     (UINT64_C(1) << 62)     /* the last hole ends here */
#define OPEN_MOST       64
#define FLIGHT_MOST     512
#define WRITEISH        (IOMAP_WRITE | IOMAP_ZERO | IOMAP_UNSHARE)

enum state { DELAYED = 1, UNWRITTEN, MAPPED };

struct extent { uint64_t blk, count, at; enum state state; };   /* in blocks; at NOWHERE while DELAYED */
struct list { struct extent *e; unsigned nr, room; };

struct extfs_file {
	struct extfs *fs;
	char name[32];
	bool used;
	uint64_t size;                  /* of what is on the device */
	uint64_t open_size;             /* in the cache, as iomap_end() and set_size() tell */
	uint64_t seq;
	struct list data, copies;
	bool is_inline;
	unsigned char *inline_data;     /* a block */
	struct call *writer;
};

/* A begin() that waits for its end(). */
struct call {
	bool open;
	struct extfs_file *file;
	uint64_t pos, length;
	unsigned flags;
	struct iomap answer;
	uint64_t room;                  /* from pos to the end of the answer and its source */
	bool in_copies;                 /* [new_from, new_to) was made in copies, else in data */
	uint64_t new_from, new_to;      /* blocks that this call reserved or took */
	unsigned asked;                 /* iomap_valid() calls … */
	bool was_stale;                 /* … and one said no */
};

struct flight { struct extfs_file *file; uint64_t offset, size, addr; unsigned flags; };
struct rule { int error; uint64_t from, to; unsigned skip, times; };

struct extfs {
	struct mutex lock;
	struct extfs_params p;
	uint64_t nr_blocks, free, reserved, hint;       /* block 0 is nobody's */
	uint64_t fresh;                 /* no block from here on was ever taken */
	uint16_t *refs;
	struct extfs_file file[EXTFS_FILES];
	struct call call[OPEN_MOST];
	struct flight flight[FLIGHT_MOST];
	unsigned nr_flight, nr_open;
	struct rule rule[EXTFS_POINTS];
	struct extfs_stat count;        /* the calls */
	uint64_t random;
	unsigned char *scratch;         /* a block */
	char bad[256];
};

__attribute__((format(printf, 2, 3)))
static void broken(struct extfs *fs, const char *format, ...)
{
	va_list ap;

	if (fs->bad[0])
		return;
	va_start(ap, format);
	vsnprintf(fs->bad, sizeof(fs->bad), format, ap);
	va_end(ap);
}

#define LLU(x) ((unsigned long long)(x))

static uint64_t random_below(struct extfs *fs, uint64_t n)
{
	uint64_t x = fs->random += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return (x ^ x >> 31) % n;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t to_block(const struct extfs *fs, uint64_t pos) { return pos / fs->p.block; }
static uint64_t to_block_up(const struct extfs *fs, uint64_t pos) { return pos / fs->p.block + (pos % fs->p.block != 0); }

static int fails(struct extfs *fs, enum extfs_point point, uint64_t pos, uint64_t len)
{
	struct rule *r = &fs->rule[point];
	int error = r->error;

	if (!error || pos >= r->to || pos + len <= r->from)
		return 0;
	if (r->skip) {
		r->skip--;
		return 0;
	}
	if (r->times && --r->times == 0)
		r->error = 0;
	return error;
}

static void call_hook(struct extfs *fs, enum extfs_point point, struct extfs_file *f, uint64_t pos, uint64_t len)
{
	if (fs->p.hook)
		fs->p.hook(fs->p.priv, point, f, pos, len);
}

/* --- blocks of the device ----------------------------------------------------------------------------------------- */

static void poison(struct extfs *fs, uint64_t at)
{
	if (!fs->p.poke)
		return;
	memset(fs->scratch, EXTFS_POISON, fs->p.block);
	fs->p.poke(fs->p.priv, at * fs->p.block, fs->scratch, fs->p.block);
}

static bool in_flight_at(const struct extfs *fs, uint64_t at)
{
	for (unsigned i = 0; i < fs->nr_flight; i++) {
		const struct flight *fl = &fs->flight[i];

		if (at * fs->p.block < fl->addr + fl->size && fl->addr < (at + 1) * fs->p.block)
			return true;
	}
	return false;
}

static void put_block(struct extfs *fs, uint64_t at)
{
	if (--fs->refs[at])
		return;
	if (in_flight_at(fs, at))
		broken(fs, "block %llu becomes free while a request writes it", LLU(at));
	fs->free++;
	poison(fs, at);
}

/* A run of up to @wanted free blocks, @got of them, each with one reference. There is one. */
static uint64_t take_blocks(struct extfs *fs, uint64_t wanted, uint64_t *got)
{
	uint64_t at = fs->hint, n = 0;

	if (fs->p.extent_max)
		wanted = least(wanted, 1 + random_below(fs, fs->p.extent_max));
	while (at >= fs->nr_blocks || fs->refs[at])
		at = at + 1 < fs->nr_blocks ? at + 1 : 1;
	while (n < wanted && at + n < fs->nr_blocks && !fs->refs[at + n] &&
	       !(n && fs->p.boundary && (at + n) % fs->p.boundary == 0))
		fs->refs[at + n++] = 1;
	for (; fs->fresh < at + n; fs->fresh++)
		poison(fs, fs->fresh);
	fs->free -= n;
	fs->hint = at + n + (fs->p.extent_max ? random_below(fs, 3) : 0);
	*got = n;
	return at;
}

static uint64_t available(const struct extfs *fs) { return fs->free - fs->reserved; }

/* --- extents ------------------------------------------------------------------------------------------------------ */

/* The first that ends behind @blk; nr if none does. */
static unsigned find(const struct list *l, uint64_t blk)
{
	unsigned lo = 0, hi = l->nr;

	while (lo < hi) {
		unsigned mid = (lo + hi) / 2;

		if (l->e[mid].blk + l->e[mid].count > blk)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

static const struct extent *extent_at(const struct list *l, uint64_t blk)
{
	unsigned i = find(l, blk);

	return i < l->nr && l->e[i].blk <= blk ? &l->e[i] : NULL;
}

/* Where the hole around @blk ends, at most @most_blk. */
static uint64_t hole_end(const struct list *l, uint64_t blk, uint64_t most_blk)
{
	unsigned i = find(l, blk);

	return i < l->nr ? least(l->e[i].blk, most_blk) : most_blk;
}

static uint64_t hole_begin(const struct list *l, uint64_t blk)
{
	unsigned i = find(l, blk);

	return i ? l->e[i - 1].blk + l->e[i - 1].count : 0;
}

static void open_gap(struct list *l, unsigned i)
{
	if (l->nr == l->room)
		abort();
	memmove(l->e + i + 1, l->e + i, (l->nr - i) * sizeof(*l->e));
	l->nr++;
}

static void close_gap(struct list *l, unsigned i)
{
	l->nr--;
	memmove(l->e + i, l->e + i + 1, (l->nr - i) * sizeof(*l->e));
}

static struct extent part(const struct extent *e, uint64_t from, uint64_t to)
{
	return (struct extent){ from, to - from, e->state == DELAYED ? NOWHERE : e->at + (from - e->blk), e->state };
}

/* Takes the first piece of [from, to) out of the list. False: there is none left. */
static bool take_piece(struct list *l, uint64_t from, uint64_t to, struct extent *out)
{
	unsigned i = find(l, from);
	struct extent whole;
	uint64_t a, b;

	if (i == l->nr || l->e[i].blk >= to)
		return false;
	whole = l->e[i];
	a = most(from, whole.blk);
	b = least(to, whole.blk + whole.count);
	*out = part(&whole, a, b);
	if (a == whole.blk && b == whole.blk + whole.count) {
		close_gap(l, i);
	} else if (a == whole.blk) {
		l->e[i] = part(&whole, b, whole.blk + whole.count);
	} else {
		l->e[i] = part(&whole, whole.blk, a);
		if (b < whole.blk + whole.count) {
			open_gap(l, i + 1);
			l->e[i + 1] = part(&whole, b, whole.blk + whole.count);
		}
	}
	return true;
}

static bool continues(const struct extfs *fs, const struct extent *a, const struct extent *b)
{
	if (a->state != b->state || a->blk + a->count != b->blk)
		return false;
	return a->state == DELAYED || (a->at + a->count == b->at && !(fs->p.boundary && b->at % fs->p.boundary == 0));
}

/* Puts an extent where nothing is. */
static void put_extent(struct extfs *fs, struct list *l, struct extent e)
{
	unsigned i = find(l, e.blk);

	if (i > 0 && continues(fs, &l->e[i - 1], &e)) {
		l->e[i - 1].count += e.count;
		i--;
	} else {
		open_gap(l, i);
		l->e[i] = e;
	}
	if (i + 1 < l->nr && continues(fs, &l->e[i], &l->e[i + 1])) {
		l->e[i].count += l->e[i + 1].count;
		close_gap(l, i + 1);
	}
}

/* Nothing is left of [from, to). */
static void cut(struct extfs *fs, struct list *l, uint64_t from, uint64_t to)
{
	struct extent e;

	while (take_piece(l, from, to, &e)) {
		if (e.state == DELAYED) {
			fs->reserved -= e.count;
			continue;
		}
		for (uint64_t i = 0; i < e.count; i++)
			put_block(fs, e.at + i);
	}
}

static bool is_shared(const struct extfs *fs, const struct extent *e, uint64_t blk)
{
	return e->state == MAPPED && fs->refs[e->at + (blk - e->blk)] > 1;
}

/* Of an extent the part around @blk that is all shared, or all not. */
static struct extent even_part(const struct extfs *fs, const struct extent *e, uint64_t blk)
{
	bool shared = is_shared(fs, e, blk);
	uint64_t from = blk, to = blk + 1;

	while (from > e->blk && is_shared(fs, e, from - 1) == shared)
		from--;
	while (to < e->blk + e->count && is_shared(fs, e, to) == shared)
		to++;
	return part(e, from, to);
}

/* A place for the delayed blocks of @l from @blk on, at least one, perhaps the whole extent. */
static void allocate(struct extfs *fs, struct list *l, uint64_t blk)
{
	const struct extent *e = extent_at(l, blk);
	uint64_t from = e->blk, to = e->blk + e->count, n, at;
	struct extent piece;

	if (fs->p.flags & EXTFS_CHOP)
		from = blk;
	at = take_blocks(fs, to - from, &n);
	while (from + n <= blk) {       /* in front of the block asked for; it counts all the same */
		take_piece(l, from, from + n, &piece);
		fs->reserved -= n;
		put_extent(fs, l, (struct extent){ from, n, at, UNWRITTEN });
		from += n;
		at = take_blocks(fs, to - from, &n);
	}
	take_piece(l, from, from + n, &piece);
	fs->reserved -= n;
	put_extent(fs, l, (struct extent){ from, n, at, UNWRITTEN });
}

/* --- inline files ------------------------------------------------------------------------------------------------- */

/* The bytes of an inline file get a block. -ENOSPC */
static int move_out(struct extfs_file *f)
{
	struct extfs *fs = f->fs;
	uint64_t n, at;

	if (f->size) {
		if (!available(fs))
			return -ENOSPC;
		at = take_blocks(fs, 1, &n);
		memset(f->inline_data + f->size, 0, fs->p.block - f->size);
		fs->p.poke(fs->p.priv, at * fs->p.block, f->inline_data, fs->p.block);
		put_extent(fs, &f->data, (struct extent){ 0, 1, at, MAPPED });
	}
	f->is_inline = false;
	f->seq++;
	return 0;
}

/* --- begin and end ------------------------------------------------------------------------------------------------ */

static void answer_extent(const struct extfs *fs, const struct extent *e, struct iomap *iomap)
{
	static const unsigned char types[] = { [DELAYED] = IOMAP_DELALLOC, [UNWRITTEN] = IOMAP_UNWRITTEN, [MAPPED] = IOMAP_MAPPED };

	iomap->type = types[e->state];
	iomap->flags = 0;
	iomap->addr = e->state == DELAYED ? IOMAP_NULL_ADDR : e->at * fs->p.block;
	iomap->offset = e->blk * fs->p.block;
	iomap->length = e->count * fs->p.block;
	if (e->state == MAPPED && fs->refs[e->at] > 1)
		iomap->flags |= IOMAP_F_SHARED;
	if (e->state != DELAYED && fs->p.boundary && e->at % fs->p.boundary == 0)
		iomap->flags |= IOMAP_F_BOUNDARY;
}

static void answer_hole(const struct extfs *fs, uint64_t from, uint64_t to, struct iomap *iomap)
{
	iomap->type = IOMAP_HOLE;
	iomap->flags = 0;
	iomap->addr = IOMAP_NULL_ADDR;
	iomap->offset = from * fs->p.block;
	iomap->length = (to - from) * fs->p.block;
}

static uint64_t last_blk(const struct extfs *fs) { return END_OF_FILE / fs->p.block; }

/* What is there now, without a change. */
static void answer_data(struct extfs_file *f, uint64_t blk, struct iomap *iomap)
{
	struct extfs *fs = f->fs;
	const struct extent *e = extent_at(&f->data, blk);

	if (e) {
		struct extent even = even_part(fs, e, blk);

		answer_extent(fs, &even, iomap);
	} else {
		answer_hole(fs, hole_begin(&f->data, blk), hole_end(&f->data, blk, last_blk(fs)), iomap);
	}
}

/* An answer may be cut at both ends, in whole blocks, as long as it holds @blk. */
static void narrow(const struct extfs *fs, struct iomap *iomap, uint64_t from, uint64_t to)
{
	uint64_t a = most(iomap->offset, from * fs->p.block), b = least(iomap->offset + iomap->length, to * fs->p.block);

	if (iomap->addr != IOMAP_NULL_ADDR)
		iomap->addr += a - iomap->offset;
	if (a > iomap->offset)
		iomap->flags &= (uint16_t)~IOMAP_F_BOUNDARY;
	iomap->offset = a;
	iomap->length = b - a;
}

/* A write that goes elsewhere: its copy, reserved now where it is not yet, and where its bytes are. */
static int answer_copy(struct extfs_file *f, struct call *c, uint64_t blk, uint64_t end, struct iomap *iomap, struct iomap *srcmap)
{
	struct extfs *fs = f->fs;
	const struct extent *e = extent_at(&f->copies, blk);
	struct iomap source = { .addr = IOMAP_NULL_ADDR };

	answer_data(f, blk, &source);
	if (!e) {
		uint64_t n = hole_end(&f->copies, blk, least(end, to_block(fs, source.offset + source.length))) - blk;

		n = least(n, available(fs));
		if (!n)
			return -ENOSPC;
		c->in_copies = true;
		c->new_from = blk;
		c->new_to = blk + n;
		if (c->flags & IOMAP_DIRECT) {
			uint64_t at = take_blocks(fs, n, &n);

			c->new_to = blk + n;
			put_extent(fs, &f->copies, (struct extent){ blk, n, at, UNWRITTEN });
		} else {
			fs->reserved += n;
			put_extent(fs, &f->copies, (struct extent){ blk, n, NOWHERE, DELAYED });
		}
		f->seq++;
		e = extent_at(&f->copies, blk);
	} else if (e->state == DELAYED && c->flags & IOMAP_DIRECT) {
		allocate(fs, &f->copies, blk);
		f->seq++;
		e = extent_at(&f->copies, blk);
	}
	answer_extent(fs, e, iomap);
	iomap->flags |= IOMAP_F_SHARED;
	narrow(fs, iomap, to_block(fs, source.offset), to_block(fs, source.offset + source.length));
	if (source.type == IOMAP_HOLE) {        /* EXTFS_ALWAYS_COW */
		iomap->flags |= IOMAP_F_NEW;
	} else {
		*srcmap = source;
		narrow(fs, srcmap, to_block(fs, iomap->offset), to_block(fs, iomap->offset + iomap->length));
		srcmap->validity_cookie = f->seq;
	}
	return 0;
}

/* A write into a hole: reserved, or taken at once. */
static int answer_new(struct extfs_file *f, struct call *c, uint64_t blk, uint64_t end, struct iomap *iomap)
{
	struct extfs *fs = f->fs;
	uint64_t n = least(hole_end(&f->data, blk, end) - blk, available(fs)), at;
	struct extent e;

	if (!n)
		return -ENOSPC;
	if (fs->p.flags & EXTFS_EARLY || c->flags & IOMAP_DIRECT) {
		at = take_blocks(fs, n, &n);
		e = (struct extent){ blk, n, at, UNWRITTEN };
	} else {
		fs->reserved += n;
		e = (struct extent){ blk, n, NOWHERE, DELAYED };
	}
	c->in_copies = false;
	c->new_from = blk;
	c->new_to = blk + n;
	put_extent(fs, &f->data, e);
	f->seq++;
	answer_extent(fs, &e, iomap);   /* only what is new */
	iomap->flags |= IOMAP_F_NEW;
	/* for others it stays unwritten: nobody may read it before its bytes are there */
	if (e.state == UNWRITTEN && fs->p.flags & EXTFS_EARLY_NEW && !(c->flags & IOMAP_DIRECT))
		iomap->type = IOMAP_MAPPED;
	return 0;
}

static int answer(struct extfs_file *f, struct call *c, struct iomap *iomap, struct iomap *srcmap)
{
	struct extfs *fs = f->fs;
	uint64_t blk = to_block(fs, c->pos), end = to_block_up(fs, c->pos + c->length);
	const struct extent *e = extent_at(&f->data, blk);
	bool mapped = e && e->state == MAPPED;
	bool elsewhere = mapped && (is_shared(fs, e, blk) || fs->p.flags & EXTFS_ALWAYS_COW);
	const struct rule *r = &fs->rule[EXTFS_BEGIN];

	if (r->error && c->pos < r->from)       /* what is to fail is another call */
		end = least(end, most(blk + 1, to_block(fs, r->from)));

	if (!(c->flags & WRITEISH)) {
		answer_data(f, blk, iomap);
		return 0;
	}
	if (c->flags & IOMAP_ZERO && !mapped) {
		answer_data(f, blk, iomap);
		return 0;
	}
	if (c->flags & IOMAP_UNSHARE && !(mapped && is_shared(fs, e, blk)) && !extent_at(&f->copies, blk)) {
		answer_data(f, blk, iomap);
		return 0;
	}
	if (extent_at(&f->copies, blk) || elsewhere || (!e && fs->p.flags & EXTFS_ALWAYS_COW))
		return answer_copy(f, c, blk, end, iomap, srcmap);
	if (!e)
		return answer_new(f, c, blk, end, iomap);
	if (e->state == DELAYED && c->flags & IOMAP_DIRECT) {
		allocate(fs, &f->data, blk);
		f->seq++;
	}
	answer_data(f, blk, iomap);
	/* what has a copy under way is another answer */
	narrow(fs, iomap, hole_begin(&f->copies, blk), hole_end(&f->copies, blk, last_blk(fs)));
	return 0;
}

/* @inline_data, where the file is small enough to be there and stays so. */
static int answer_inline(struct extfs_file *f, struct call *c, struct iomap *iomap, bool *done)
{
	struct extfs *fs = f->fs;
	uint64_t end = c->flags & WRITEISH ? fs->p.inline_max : f->size;

	*done = true;
	if (c->flags & (IOMAP_WRITE | IOMAP_DIRECT) &&
	    (c->pos + c->length > fs->p.inline_max || c->flags & IOMAP_DIRECT)) {
		*done = false;
		return move_out(f);
	}
	if (c->pos >= end) {
		answer_hole(fs, to_block(fs, c->pos), last_blk(fs), iomap);
		return 0;
	}
	if (c->flags & WRITEISH)
		memset(f->inline_data + f->size, 0, fs->p.block - f->size);
	*iomap = (struct iomap){ .type = IOMAP_INLINE, .addr = IOMAP_NULL_ADDR, .length = end, .inline_data = f->inline_data };
	return 0;
}

static struct call *open_call(struct extfs *fs)
{
	for (unsigned i = 0; i < OPEN_MOST; i++)
		if (!fs->call[i].open)
			return &fs->call[i];
	return NULL;
}

static void look_at_begin(struct extfs_file *f, uint64_t pos, uint64_t length, unsigned flags, const struct iomap *srcmap)
{
	struct extfs *fs = f->fs;
	unsigned known = WRITEISH | IOMAP_REPORT | IOMAP_DIRECT | IOMAP_NOWAIT | IOMAP_DONTCACHE, kind = flags & WRITEISH;

	if (!f->used)
		broken(fs, "begin: the file is gone");
	if (flags & ~known)
		broken(fs, "begin: unknown flags %x", flags);
	if (kind & (kind - 1))
		broken(fs, "begin: two purposes at once, flags %x", flags);
	if (!length || pos + length < pos)
		broken(fs, "begin of %s: %llu + %llu", f->name, LLU(pos), LLU(length));
	if (srcmap->type != IOMAP_HOLE)
		broken(fs, "begin of %s: the source map is not empty", f->name);
	if (kind && f->writer)
		broken(fs, "begin of %s at %llu, flags %x: another of [%llu, +%llu), flags %x, has not ended", f->name, LLU(pos), flags,
		       LLU(f->writer->pos), LLU(f->writer->length), f->writer->flags);
}

static int begin(void *ops_priv, uint64_t pos, uint64_t length, unsigned flags, struct iomap *iomap, struct iomap *srcmap)
{
	struct extfs_file *f = ops_priv;
	struct extfs *fs = f->fs;
	bool done = false;
	struct call *c;
	int ret;

	mutex_lock(&fs->lock);
	look_at_begin(f, pos, length, flags, srcmap);
	ret = flags & WRITEISH ? fails(fs, EXTFS_BEGIN, pos, 1) : 0;
	c = open_call(fs);
	if (!ret && !c)
		ret = -ENOMEM;
	if (ret)
		goto out;
	*c = (struct call){ .file = f, .pos = pos, .length = length, .flags = flags };
	*iomap = (struct iomap){ .addr = IOMAP_NULL_ADDR };
	if (f->is_inline)
		ret = answer_inline(f, c, iomap, &done);
	if (!ret && !done)
		ret = answer(f, c, iomap, srcmap);
	if (ret)
		goto out;
	if (fs->p.flags & EXTFS_CHOP && iomap->type != IOMAP_INLINE && !random_below(fs, 3)) {
		uint64_t blk = to_block(fs, pos), to = blk + 1 + random_below(fs, 4);

		to = c->new_to ? most(to, c->new_to) : to;      /* what was taken for it is part of the answer */
		narrow(fs, iomap, random_below(fs, 2) ? blk : 0, to);
		if (srcmap->type != IOMAP_HOLE)
			narrow(fs, srcmap, to_block(fs, iomap->offset), to_block(fs, iomap->offset + iomap->length));
	}
	iomap->priv = c;
	iomap->validity_cookie = f->seq;
	c->answer = *iomap;
	c->room = iomap->offset + iomap->length - pos;
	if (srcmap->type != IOMAP_HOLE)
		c->room = least(c->room, srcmap->offset + srcmap->length - pos);
	c->open = true;
	fs->nr_open++;
	fs->count.begins++;
	if (flags & WRITEISH)
		f->writer = c;
out:
	mutex_unlock(&fs->lock);
	if (!ret && flags & WRITEISH)
		call_hook(fs, EXTFS_BEGIN, f, pos, length);
	return ret;
}

static struct call *call_of(struct extfs_file *f, const struct iomap *iomap)
{
	struct call *c = iomap->priv;

	if (c >= f->fs->call && c < f->fs->call + OPEN_MOST && c->open && c->file == f)
		return c;
	return NULL;
}

/* What this call set aside from block @keep on is given back, where it still is as it was made. */
static void give_back(struct extfs_file *f, struct call *c, uint64_t keep)
{
	struct list *l = c->in_copies ? &f->copies : &f->data;
	uint64_t at = most(keep, c->new_from);
	bool early = f->fs->p.flags & EXTFS_EARLY || c->flags & IOMAP_DIRECT;

	while (at < c->new_to) {
		const struct extent *e = extent_at(l, at);
		uint64_t end;

		if (!e) {
			at = hole_end(l, at, c->new_to);
			continue;
		}
		end = least(e->blk + e->count, c->new_to);
		/* delayed ones that writeback gave a place beside their neighbours stay, as preallocation */
		if (e->state == DELAYED || (early && e->state == UNWRITTEN)) {
			cut(f->fs, l, at, end);
			f->seq++;
		}
		at = end;
	}
}

/* Bytes went around the cache: they are on the device. */
static void direct_write_done(struct extfs_file *f, uint64_t pos, uint64_t len)
{
	struct extfs *fs = f->fs;
	uint64_t from = to_block(fs, pos), to = to_block_up(fs, pos + len);
	struct extent e;

	while (take_piece(&f->copies, from, to, &e)) {
		cut(fs, &f->data, e.blk, e.blk + e.count);
		e.state = MAPPED;
		put_extent(fs, &f->data, e);
	}
	for (uint64_t at = from; at < to; ) {
		const struct extent *u = extent_at(&f->data, at);
		uint64_t end = u ? least(u->blk + u->count, to) : hole_end(&f->data, at, to);

		if (u && u->state == UNWRITTEN) {
			take_piece(&f->data, at, end, &e);
			e.state = MAPPED;
			put_extent(fs, &f->data, e);
		}
		at = end;
	}
	f->size = most(f->size, pos + len);
	f->seq++;
}

static void look_at_end(struct extfs_file *f, struct call *c, uint64_t pos, uint64_t length, int64_t written, unsigned flags,
			const struct iomap *iomap)
{
	struct extfs *fs = f->fs;
	const struct iomap *a = &c->answer;
	uint16_t theirs = IOMAP_F_SIZE_CHANGED | IOMAP_F_STALE;

	/* as much of what was asked as both mappings hold */
	if (pos != c->pos || length != least(c->length, c->room) || flags != c->flags)
		broken(fs, "end of %s: %llu + %llu, flags %x, but begin was %llu + %llu, flags %x, and got %llu", f->name, LLU(pos),
		       LLU(length), flags, LLU(c->pos), LLU(c->length), c->flags, LLU(c->room));
	if (written < 0 || (uint64_t)written > length)
		broken(fs, "end of %s at %llu: %lld written of %llu", f->name, LLU(pos), (long long)written, LLU(length));
	if (iomap->addr != a->addr || iomap->offset != a->offset || iomap->length != a->length || iomap->type != a->type ||
	    (iomap->flags & ~theirs) != a->flags)
		broken(fs, "end of %s at %llu: not the mapping that begin gave", f->name, LLU(pos));
	if (iomap->flags & IOMAP_F_SIZE_CHANGED && !(flags & IOMAP_WRITE))
		broken(fs, "end of %s at %llu: flags %x made the file grow", f->name, LLU(pos), flags);
	if (iomap->flags & IOMAP_F_STALE && !c->was_stale)
		broken(fs, "end of %s at %llu: taken for stale, though nobody said so", f->name, LLU(pos));
	if (flags & IOMAP_WRITE && !(flags & IOMAP_DIRECT) && written > 0 && !c->asked)
		broken(fs, "end of %s at %llu: written without asking whether the mapping is valid", f->name, LLU(pos));
}

static int end(void *ops_priv, uint64_t pos, uint64_t length, int64_t written, unsigned flags, struct iomap *iomap)
{
	struct extfs_file *f = ops_priv;
	struct extfs *fs = f->fs;
	struct call *c;

	mutex_lock(&fs->lock);
	fs->count.ends++;
	c = call_of(f, iomap);
	if (!c) {
		broken(fs, "end of %s at %llu without a begin", f->name, LLU(pos));
		goto out;
	}
	look_at_end(f, c, pos, length, written, flags, iomap);
	if (c->new_to && pos + (uint64_t)written < c->pos + c->length)
		give_back(f, c, written > 0 ? to_block_up(fs, pos + (uint64_t)written) : to_block(fs, pos));
	if (flags & IOMAP_WRITE && flags & IOMAP_DIRECT && written > 0) {
		direct_write_done(f, pos, (uint64_t)written);
	} else if (iomap->type == IOMAP_INLINE && flags & IOMAP_WRITE && written > 0 && pos + (uint64_t)written > f->size) {
		if (!(iomap->flags & IOMAP_F_SIZE_CHANGED))
			broken(fs, "end of %s: its inline data grew to %llu, its size did not", f->name, LLU(pos + (uint64_t)written));
		f->size = pos + (uint64_t)written;
		f->seq++;
	}
	if (iomap->flags & IOMAP_F_SIZE_CHANGED || (flags & IOMAP_WRITE && flags & IOMAP_DIRECT))
		f->open_size = most(f->open_size, pos + (uint64_t)written);
	if (f->writer == c)
		f->writer = NULL;
	c->open = false;
	fs->nr_open--;
out:
	mutex_unlock(&fs->lock);
	return 0;
}

static bool valid(void *ops_priv, const struct iomap *iomap)
{
	struct extfs_file *f = ops_priv;
	struct extfs *fs = f->fs;
	struct call *c;
	bool yes;

	mutex_lock(&fs->lock);
	c = call_of(f, iomap);
	yes = iomap->validity_cookie == f->seq;
	if (!c)
		broken(fs, "a mapping of %s that no begin gave, or that has ended, is asked for", f->name);
	else
		c->asked++;
	if (c && !yes)
		c->was_stale = true;
	if (!yes)
		fs->count.stale++;
	mutex_unlock(&fs->lock);
	call_hook(fs, EXTFS_VALID, f, iomap->offset, iomap->length);
	return yes;
}

/* --- size, space, commit ------------------------------------------------------------------------------------------ */

/* Whatever reads or writes [from, to) must be over. */
static void look_at_cut(struct extfs_file *f, const char *what, uint64_t from, uint64_t to)
{
	struct extfs *fs = f->fs;

	for (unsigned i = 0; i < fs->nr_flight; i++) {
		const struct flight *fl = &fs->flight[i];

		if (fl->file == f && fl->offset < to && from < fl->offset + fl->size)
			broken(fs, "%s of %s from %llu on, with [%llu, +%llu) in flight", what, f->name, LLU(from), LLU(fl->offset),
			       LLU(fl->size));
	}
	for (unsigned i = 0; i < OPEN_MOST; i++) {
		const struct call *c = &fs->call[i];

		if (c->open && c->file == f && !(c->flags & IOMAP_REPORT) && c->pos < to && from < c->pos + c->length)
			broken(fs, "%s of %s from %llu on, between begin and end of [%llu, +%llu), flags %x", what, f->name, LLU(from),
			       LLU(c->pos), LLU(c->length), c->flags);
	}
}

static int set_size(void *ops_priv, uint64_t size)
{
	struct extfs_file *f = ops_priv;
	struct extfs *fs = f->fs;
	uint64_t blk = to_block_up(fs, size);
	int ret = 0;

	mutex_lock(&fs->lock);
	if (f->is_inline && size > fs->p.inline_max)
		ret = move_out(f);
	if (ret)
		goto out;
	look_at_cut(f, "set_size", blk * fs->p.block, UINT64_MAX);
	if (f->is_inline) {
		if (size > f->size)
			memset(f->inline_data + f->size, 0, size - f->size);
	} else {
		cut(fs, &f->data, blk, UINT64_MAX);
		cut(fs, &f->copies, blk, UINT64_MAX);
		f->is_inline = !size && fs->p.inline_max;
	}
	f->size = f->open_size = size;
	f->seq++;
out:
	mutex_unlock(&fs->lock);
	return ret;
}

/* All holes of [from, to) get blocks, or none does. */
static int preallocate(struct extfs_file *f, uint64_t from, uint64_t to)
{
	struct extfs *fs = f->fs;
	uint64_t wanted = 0, n, at;

	for (uint64_t blk = from; blk < to; ) {
		const struct extent *e = extent_at(&f->data, blk);
		uint64_t stop = e ? least(e->blk + e->count, to) : hole_end(&f->data, blk, to);

		wanted += e ? 0 : stop - blk;
		blk = stop;
	}
	if (wanted > available(fs))
		return -ENOSPC;
	for (uint64_t blk = from; blk < to; ) {
		const struct extent *e = extent_at(&f->data, blk);

		if (e) {
			blk = e->blk + e->count;
			continue;
		}
		at = take_blocks(fs, hole_end(&f->data, blk, to) - blk, &n);
		put_extent(fs, &f->data, (struct extent){ blk, n, at, UNWRITTEN });
		blk += n;
	}
	return 0;
}

static int fallocate_(void *ops_priv, int mode, uint64_t pos, uint64_t length)
{
	struct extfs_file *f = ops_priv;
	struct extfs *fs = f->fs;
	bool punch = mode & FALLOC_FL_PUNCH_HOLE;
	int ret = 0;

	if (mode & ~(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE))
		return -EOPNOTSUPP;
	mutex_lock(&fs->lock);
	if (!length || pos + length < pos)
		broken(fs, "fallocate of %s: %llu + %llu", f->name, LLU(pos), LLU(length));
	if (punch && (!(mode & FALLOC_FL_KEEP_SIZE) || pos % fs->p.block || length % fs->p.block))
		broken(fs, "punch of %s: mode %x, %llu + %llu is not in whole blocks", f->name, (unsigned)mode, LLU(pos), LLU(length));
	if (f->is_inline)
		ret = move_out(f);
	if (!ret && punch) {
		look_at_cut(f, "punch", pos, pos + length);
		cut(fs, &f->data, to_block(fs, pos), to_block_up(fs, pos + length));
		cut(fs, &f->copies, to_block(fs, pos), to_block_up(fs, pos + length));
	} else if (!ret) {
		ret = preallocate(f, to_block(fs, pos), to_block_up(fs, pos + length));
	}
	f->seq++;
	mutex_unlock(&fs->lock);
	return ret;
}

static int commit(void *ops_priv, bool datasync)
{
	struct extfs_file *f = ops_priv;
	int ret;

	(void)datasync;
	mutex_lock(&f->fs->lock);
	f->fs->count.commits++;
	ret = fails(f->fs, EXTFS_COMMIT, 0, 1);
	mutex_unlock(&f->fs->lock);
	call_hook(f->fs, EXTFS_COMMIT, f, 0, 0);
	return ret;
}

const struct iomap_ops extfs_ops = {
	.iomap_begin = begin, .iomap_end = end, .iomap_valid = valid, .set_size = set_size, .fallocate = fallocate_, .commit = commit,
};

/* --- writeback ---------------------------------------------------------------------------------------------------- */

/* The mapping that @blk is written by. */
static int map_for_writeback(struct extfs_file *f, uint64_t blk, struct iomap *iomap)
{
	struct extfs *fs = f->fs;
	const struct extent *e = extent_at(&f->copies, blk);
	struct list *l = e ? &f->copies : &f->data;
	struct extent even;

	if (f->is_inline) {
		broken(fs, "writeback of %s, which is inline", f->name);
		return -EIO;
	}
	if (!e)
		e = extent_at(&f->data, blk);
	if (!e || (l == &f->data && is_shared(fs, e, blk))) {
		broken(fs, "writeback of %s at %llu: a dirty block over %s, for which nothing is set aside", f->name,
		       LLU(blk * fs->p.block), e ? "shared ones" : "a hole");
		return -EIO;
	}
	if (e->state == DELAYED) {
		allocate(fs, l, blk);
		f->seq++;
		e = extent_at(l, blk);
	}
	even = even_part(fs, e, blk);
	answer_extent(fs, &even, iomap);
	if (l == &f->copies) {
		iomap->flags |= IOMAP_F_SHARED;
		if (!(fs->p.flags & EXTFS_COW_UNWRITTEN))
			iomap->type = IOMAP_MAPPED;
	} else {
		/* In place, also where all writes go elsewhere: dirtied again while its copy was on the way. Not over other copies. */
		narrow(fs, iomap, hole_begin(&f->copies, blk), hole_end(&f->copies, blk, last_blk(fs)));
	}
	return 0;
}

int extfs_map(struct iomap_writepage_ctx *wpc, uint64_t pos, uint64_t len)
{
	struct extfs_file *f = wpc->ops_priv;
	struct extfs *fs = f->fs;
	struct iomap *iomap = &wpc->iomap;
	int ret;

	mutex_lock(&fs->lock);
	if (pos % fs->p.block || len % fs->p.block || !len)
		broken(fs, "writeback of %s: %llu + %llu is not in whole blocks", f->name, LLU(pos), LLU(len));
	ret = fails(fs, EXTFS_MAP, pos, 1);
	if (!ret && !(iomap->length && iomap->validity_cookie == f->seq && pos >= iomap->offset &&
		      pos < iomap->offset + iomap->length)) {
		*iomap = (struct iomap){ .addr = IOMAP_NULL_ADDR, .priv = f };
		ret = map_for_writeback(f, to_block(fs, pos), iomap);
		if (!ret && fs->rule[EXTFS_MAP].error && pos < fs->rule[EXTFS_MAP].from)        /* what is to fail is another call */
			narrow(fs, iomap, 0, to_block(fs, fs->rule[EXTFS_MAP].from));
		iomap->validity_cookie = f->seq;
	}
	if (!ret && fails(fs, EXTFS_BAD_MAP, pos, len)) {
		iomap->type = IOMAP_DELALLOC;
		iomap->addr = IOMAP_NULL_ADDR;
		iomap->validity_cookie--;
	}
	mutex_unlock(&fs->lock);
	call_hook(fs, EXTFS_MAP, f, pos, len);
	return ret;
}

static ssize_t writeback_range(struct iomap_writepage_ctx *wpc, struct iomap_folio *folio, uint64_t pos, uint64_t len,
			       uint64_t end_pos)
{
	int ret = extfs_map(wpc, pos, len);

	return ret ? ret : iomap_add_to_ioend(wpc, folio, pos, end_pos, len);
}

/* Is the request what the lists say? */
static void look_at_submit(struct extfs_file *f, const struct iomap_ioend *io)
{
	struct extfs *fs = f->fs;
	bool copy = io->flags & IOMAP_IOEND_SHARED, unwritten = io->flags & IOMAP_IOEND_UNWRITTEN;
	const struct list *l = copy ? &f->copies : &f->data;
	uint64_t from = to_block(fs, io->offset), to = to_block_up(fs, io->offset + io->size), at = to_block(fs, io->addr);

	if (!io->size || io->offset % fs->p.block || io->addr % fs->p.block)
		broken(fs, "request of %s: %llu + %llu at %llu", f->name, LLU(io->offset), LLU(io->size), LLU(io->addr));
	for (uint64_t blk = from; blk < to; blk++, at++) {
		const struct extent *e = extent_at(l, blk);

		if (!e || e->state == DELAYED || e->at + (blk - e->blk) != at) {
			broken(fs, "request of %s: block %llu goes to %llu, where it is not", f->name, LLU(blk), LLU(at));
			return;
		}
		if (copy ? unwritten != !!(fs->p.flags & EXTFS_COW_UNWRITTEN) : unwritten != (e->state == UNWRITTEN))
			broken(fs, "request of %s at %llu: flags %x, but the extent is %s", f->name, LLU(io->offset), io->flags,
			       e->state == UNWRITTEN ? "unwritten" : "mapped");
		if (in_flight_at(fs, at))
			broken(fs, "request of %s: block %llu is in flight already", f->name, LLU(blk));
		if (fs->p.boundary && blk > from && at % fs->p.boundary == 0)
			broken(fs, "request of %s at %llu goes on over a boundary", f->name, LLU(io->offset));
	}
	at = to_block(fs, io->addr);
	if (!!(io->flags & IOMAP_IOEND_BOUNDARY) != (fs->p.boundary && at % fs->p.boundary == 0))
		broken(fs, "request of %s at %llu: boundary flag is %u", f->name, LLU(io->offset), io->flags & IOMAP_IOEND_BOUNDARY);
}

static int submit(struct iomap_writepage_ctx *wpc, struct iomap_ioend *io)
{
	struct extfs_file *f = io->ops_priv;
	struct extfs *fs = f->fs;
	int ret;

	mutex_lock(&fs->lock);
	fs->count.submits++;
	if (wpc->ops_priv != f)
		broken(fs, "request of %s, but the pass is of another file", f->name);
	if (io->error)
		broken(fs, "request of %s begins with error %d", f->name, io->error);
	look_at_submit(f, io);
	if (fs->nr_flight == FLIGHT_MOST)
		abort();
	fs->flight[fs->nr_flight++] = (struct flight){ f, io->offset, io->size, io->addr, io->flags };
	ret = fails(fs, EXTFS_SUBMIT, io->offset, io->size);
	mutex_unlock(&fs->lock);
	call_hook(fs, EXTFS_SUBMIT, f, io->offset, io->size);
	return ret;
}

static bool landed(struct extfs_file *f, const struct iomap_ioend *io)
{
	struct extfs *fs = f->fs;

	for (unsigned i = 0; i < fs->nr_flight; i++) {
		const struct flight *fl = &fs->flight[i];

		if (fl->file == f && fl->offset == io->offset && fl->size == io->size && fl->addr == io->addr &&
		    fl->flags == io->flags) {
			fs->flight[i] = fs->flight[--fs->nr_flight];
			return true;
		}
	}
	return false;
}

static void bytes_are_there(struct extfs_file *f, const struct iomap_ioend *io)
{
	struct extfs *fs = f->fs;
	uint64_t from = to_block(fs, io->offset), to = to_block_up(fs, io->offset + io->size), done = 0;
	struct extent e;

	if (io->flags & IOMAP_IOEND_SHARED) {
		while (take_piece(&f->copies, from, to, &e)) {
			if (e.state == DELAYED)
				broken(fs, "end_io of %s at %llu: the copy has no place", f->name, LLU(io->offset));
			cut(fs, &f->data, e.blk, e.blk + e.count);
			e.state = MAPPED;
			put_extent(fs, &f->data, e);
			done += e.count;
		}
		if (done != to - from)
			broken(fs, "end_io of %s at %llu: the copies are gone", f->name, LLU(io->offset));
		f->seq++;
	} else if (io->flags & IOMAP_IOEND_UNWRITTEN) {
		for (uint64_t blk = from; blk < to; blk = e.blk + e.count, done += e.count) {
			const struct extent *u = extent_at(&f->data, blk);

			if (!u || u->state != UNWRITTEN)
				break;
			take_piece(&f->data, blk, least(to, u->blk + u->count), &e);
			e.state = MAPPED;
			put_extent(fs, &f->data, e);
		}
		if (done != to - from)
			broken(fs, "end_io of %s at %llu: its unwritten blocks are gone", f->name, LLU(io->offset));
		f->seq++;
	}
	f->size = most(f->size, io->offset + io->size);
}

static int end_io(struct iomap_ioend *io)
{
	struct extfs_file *f = io->ops_priv;
	struct extfs *fs = f->fs;
	int ret;

	call_hook(fs, EXTFS_END_IO, f, io->offset, io->size);
	mutex_lock(&fs->lock);
	fs->count.end_ios++;
	ret = fails(fs, EXTFS_END_IO, io->offset, io->size);
	if (!landed(f, io))
		broken(fs, "end_io of %s: no such request, %llu + %llu at %llu, flags %x", f->name, LLU(io->offset), LLU(io->size),
		       LLU(io->addr), io->flags);
	else if (!io->error && !ret)
		bytes_are_there(f, io);
	mutex_unlock(&fs->lock);
	return ret;
}

const struct iomap_writeback_ops extfs_writeback_ops = {
	.writeback_range = writeback_range, .writeback_submit = submit, .end_io = end_io,
};

/* --- files -------------------------------------------------------------------------------------------------------- */

struct extfs *extfs_create(const struct extfs_params *params)
{
	struct extfs *fs = calloc(1, sizeof(*fs));

	if (!fs)
		return NULL;
	fs->p = *params;
	if (!params->poke)
		fs->p.inline_max = 0;
	if (params->flags & EXTFS_EARLY_NEW)
		fs->p.flags |= EXTFS_EARLY;
	if (fs->p.inline_max >= params->block)
		fs->p.inline_max = params->block - 1;
	fs->nr_blocks = params->size / params->block;
	fs->free = fs->nr_blocks - 1;
	fs->hint = 1;
	fs->random = params->seed;
	fs->refs = calloc(fs->nr_blocks, sizeof(*fs->refs));
	fs->scratch = malloc(params->block);
	if (!fs->refs || !fs->scratch) {
		free(fs->refs);
		free(fs->scratch);
		free(fs);
		return NULL;
	}
	fs->refs[0] = 1;
	fs->fresh = 1;
	mutex_init(&fs->lock, LOCK_LEAF);
	return fs;
}

static void free_file(struct extfs_file *f)
{
	free(f->data.e);
	free(f->copies.e);
	free(f->inline_data);
	memset(f, 0, sizeof(*f));
}

void extfs_free(struct extfs *fs)
{
	for (unsigned i = 0; i < EXTFS_FILES; i++)
		if (fs->file[i].used)
			free_file(&fs->file[i]);
	mutex_fini(&fs->lock);
	free(fs->refs);
	free(fs->scratch);
	free(fs);
}

struct extfs_file *extfs_add(struct extfs *fs, const char *name)
{
	struct extfs_file *f = NULL;
	size_t bytes = (fs->nr_blocks + 2) * sizeof(struct extent);

	for (unsigned i = 0; i < EXTFS_FILES && !f; i++)
		if (!fs->file[i].used)
			f = &fs->file[i];
	if (!f)
		return NULL;
	f->data.e = malloc(bytes);
	f->copies.e = malloc(bytes);
	f->inline_data = calloc(1, fs->p.block);
	if (!f->data.e || !f->copies.e || !f->inline_data) {
		free_file(f);
		return NULL;
	}
	mutex_lock(&fs->lock);
	f->fs = fs;
	f->data.room = f->copies.room = (unsigned)fs->nr_blocks + 2;
	snprintf(f->name, sizeof(f->name), "%s", name);
	f->is_inline = fs->p.inline_max > 0;
	f->used = true;
	mutex_unlock(&fs->lock);
	return f;
}

struct extfs_file *extfs_lookup(struct extfs *fs, const char *name)
{
	for (unsigned i = 0; i < EXTFS_FILES; i++)
		if (fs->file[i].used && !strcmp(fs->file[i].name, name))
			return &fs->file[i];
	return NULL;
}

const char *extfs_name(const struct extfs_file *f) { return f->name; }

static bool is_busy(const struct extfs_file *f)
{
	const struct extfs *fs = f->fs;

	for (unsigned i = 0; i < OPEN_MOST; i++)
		if (fs->call[i].open && fs->call[i].file == f)
			return true;
	for (unsigned i = 0; i < fs->nr_flight; i++)
		if (fs->flight[i].file == f)
			return true;
	return false;
}

void extfs_remove(struct extfs_file *f)
{
	struct extfs *fs = f->fs;

	mutex_lock(&fs->lock);
	if (is_busy(f))
		broken(fs, "%s is removed while it is in use", f->name);
	cut(fs, &f->data, 0, UINT64_MAX);
	cut(fs, &f->copies, 0, UINT64_MAX);
	f->used = false;
	mutex_unlock(&fs->lock);
	free_file(f);
}

uint64_t extfs_size(struct extfs_file *f)
{
	uint64_t size;

	mutex_lock(&f->fs->lock);
	size = f->size;
	mutex_unlock(&f->fs->lock);
	return size;
}

uint64_t extfs_open_size(struct extfs_file *f)
{
	uint64_t size;

	mutex_lock(&f->fs->lock);
	size = f->open_size;
	mutex_unlock(&f->fs->lock);
	return size;
}

int extfs_clone(struct extfs_file *src, struct extfs_file *dst)
{
	struct extfs *fs = src->fs;
	int ret = 0;

	mutex_lock(&fs->lock);
	if (src == dst || is_busy(src) || is_busy(dst) || src->copies.nr || dst->copies.nr)
		ret = -EBUSY;
	for (unsigned i = 0; i < src->data.nr; i++)
		if (src->data.e[i].state == DELAYED)
			ret = -EBUSY;
	if (ret)
		goto out;
	cut(fs, &dst->data, 0, UINT64_MAX);
	for (unsigned i = 0; i < src->data.nr; i++) {
		const struct extent *e = &src->data.e[i];

		if (e->state != MAPPED)
			continue;
		for (uint64_t k = 0; k < e->count; k++)
			fs->refs[e->at + k]++;
		put_extent(fs, &dst->data, *e);
	}
	memcpy(dst->inline_data, src->inline_data, fs->p.block);
	dst->is_inline = src->is_inline;
	dst->size = dst->open_size = src->size;
	dst->seq++;
	src->seq++;
out:
	mutex_unlock(&fs->lock);
	return ret;
}

void extfs_peek(struct extfs_file *f, void *buf, uint64_t len, uint64_t pos)
{
	struct extfs *fs = f->fs;
	unsigned char *out = buf;

	mutex_lock(&fs->lock);
	for (uint64_t n; len; len -= n, pos += n, out += n) {
		uint64_t off = pos % fs->p.block;
		const struct extent *e = extent_at(&f->data, to_block(fs, pos));

		n = least(len, fs->p.block - off);
		memset(out, 0, n);
		if (f->is_inline) {
			if (pos < f->size)
				memcpy(out, f->inline_data + pos, least(n, f->size - pos));
		} else if (e && e->state == MAPPED) {
			fs->p.peek(fs->p.priv, (e->at + (to_block(fs, pos) - e->blk)) * fs->p.block + off, out, n);
			if (pos + n > f->size)
				memset(out + (pos < f->size ? f->size - pos : 0), 0, n - (pos < f->size ? f->size - pos : 0));
		}
	}
	mutex_unlock(&fs->lock);
}

int extfs_poke(struct extfs_file *f, const void *buf, uint64_t len, uint64_t pos)
{
	struct extfs *fs = f->fs;
	const unsigned char *in = buf;
	int ret = 0;

	mutex_lock(&fs->lock);
	if (f->is_inline && pos + len <= fs->p.inline_max) {
		memcpy(f->inline_data + pos, buf, len);
		f->size = most(f->size, pos + len);
		goto out;
	}
	if (f->is_inline)
		ret = move_out(f);
	if (!ret)
		ret = preallocate(f, to_block(fs, pos), to_block_up(fs, pos + len));
	for (uint64_t n; !ret && len; len -= n, pos += n, in += n) {
		uint64_t off = pos % fs->p.block, blk = to_block(fs, pos);
		const struct extent *e = extent_at(&f->data, blk);
		struct extent piece;

		n = least(len, fs->p.block - off);
		memset(fs->scratch, 0, fs->p.block);
		if (e->state == MAPPED)
			fs->p.peek(fs->p.priv, (e->at + (blk - e->blk)) * fs->p.block, fs->scratch, fs->p.block);
		memcpy(fs->scratch + off, in, n);
		take_piece(&f->data, blk, blk + 1, &piece);
		fs->p.poke(fs->p.priv, piece.at * fs->p.block, fs->scratch, fs->p.block);
		piece.state = MAPPED;
		put_extent(fs, &f->data, piece);
		f->size = most(f->size, pos + n);
	}
	f->seq++;
out:
	f->open_size = f->size;
	mutex_unlock(&fs->lock);
	return ret;
}

void extfs_fail(struct extfs *fs, enum extfs_point point, int error, uint64_t from, uint64_t to, unsigned skip, unsigned times)
{
	mutex_lock(&fs->lock);
	fs->rule[point] = (struct rule){ error, from, to, skip, times };
	mutex_unlock(&fs->lock);
}

/* --- what is there, and whether it is right ----------------------------------------------------------------------- */

static void add_up(const struct extfs_file *f, struct extfs_stat *out)
{
	const struct extfs *fs = f->fs;
	uint64_t block = fs->p.block;

	out->extents += f->data.nr + f->copies.nr;
	out->inline_files += f->is_inline;
	for (unsigned i = 0; i < f->data.nr; i++) {
		const struct extent *e = &f->data.e[i];

		*(e->state == DELAYED ? &out->delayed : e->state == UNWRITTEN ? &out->unwritten : &out->mapped) += e->count * block;
		for (uint64_t k = 0; k < e->count; k++)
			out->shared += is_shared(fs, e, e->blk + k) ? block : 0;
	}
	for (unsigned i = 0; i < f->copies.nr; i++)
		out->copies += f->copies.e[i].count * block;
}

void extfs_file_stat(struct extfs_file *f, struct extfs_stat *out)
{
	memset(out, 0, sizeof(*out));
	mutex_lock(&f->fs->lock);
	add_up(f, out);
	mutex_unlock(&f->fs->lock);
}

void extfs_stat(struct extfs *fs, struct extfs_stat *out)
{
	mutex_lock(&fs->lock);
	*out = fs->count;
	out->free = fs->free * fs->p.block;
	out->reserved = fs->reserved * fs->p.block;
	out->open = fs->nr_open;
	out->in_flight = fs->nr_flight;
	for (unsigned i = 0; i < EXTFS_FILES; i++)
		if (fs->file[i].used)
			add_up(&fs->file[i], out);
	mutex_unlock(&fs->lock);
}

const char *extfs_bad(struct extfs *fs)
{
	return fs->bad[0] ? fs->bad : NULL;
}

/* Sorted, and every place counted down in refs; NULL or what is wrong. */
static const char *check_list(struct extfs *fs, const struct list *l, uint64_t *reserved)
{
	for (unsigned i = 0; i < l->nr; i++) {
		const struct extent *e = &l->e[i];

		if (!e->count || (i && l->e[i - 1].blk + l->e[i - 1].count > e->blk))
			return "extents are not in order";
		if (e->state == DELAYED) {
			*reserved += e->count;
			continue;
		}
		if (!e->at || e->at >= fs->nr_blocks || e->count > fs->nr_blocks - e->at)
			return "an extent is not on the device";
		for (uint64_t k = 0; k < e->count; k++)
			if (!fs->refs[e->at + k]--)
				return "a block is in more places than it counts";
	}
	return NULL;
}

static void count_again(struct extfs *fs, const struct list *l)
{
	for (unsigned i = 0; i < l->nr; i++)
		for (uint64_t k = 0; l->e[i].state != DELAYED && k < l->e[i].count; k++)
			fs->refs[l->e[i].at + k]++;
}

static const char *check(struct extfs *fs, bool quiet)
{
	uint64_t reserved = 0, free_blocks = 0;
	const char *wrong = fs->bad[0] ? fs->bad : NULL;

	for (uint64_t at = 1; at < fs->nr_blocks; at++)
		free_blocks += !fs->refs[at];
	for (unsigned i = 0; i < EXTFS_FILES && !wrong; i++) {
		struct extfs_file *f = &fs->file[i];

		if (f->used && f->is_inline && (f->data.nr || f->copies.nr || f->size > fs->p.inline_max))
			wrong = "an inline file has extents";
		if (f->used && !wrong)
			wrong = check_list(fs, &f->data, &reserved);
		if (f->used && !wrong)
			wrong = check_list(fs, &f->copies, &reserved);
	}
	for (uint64_t at = 1; at < fs->nr_blocks && !wrong; at++)
		if (fs->refs[at])
			wrong = "a block counts more places than it has";
	for (unsigned i = 0; i < EXTFS_FILES && !wrong; i++) {
		if (fs->file[i].used) {
			count_again(fs, &fs->file[i].data);
			count_again(fs, &fs->file[i].copies);
		}
	}
	if (!wrong && (reserved != fs->reserved || free_blocks != fs->free))
		wrong = "free or reserved blocks are miscounted";
	if (!wrong && fs->reserved > fs->free)
		wrong = "more is promised than there is";
	if (!wrong && quiet && fs->nr_open)
		wrong = "a begin has no end";
	if (!wrong && quiet && fs->nr_flight)
		wrong = "a request has no end_io";
	return wrong;
}

bool extfs_check(struct extfs *fs, bool quiet, char *why, size_t len)
{
	const char *wrong;

	mutex_lock(&fs->lock);
	wrong = check(fs, quiet);
	if (wrong)
		snprintf(why, len, "extfs: %s", wrong);
	mutex_unlock(&fs->lock);
	return !wrong;
}
