/*
 * disk-store.c - the bytes of one file, as they are, as they were, and as they would be after a power cut
 *
 * The file is a sorted table of units of 4 KiB, each of eight sectors. A sector is a list of versions, newest
 * first. Reads show the newest; a write puts one more in front; a flush marks the newest one that it covers as
 * durable and drops all behind it. A flush that fails forsakes what it covers: that can be read, but becomes durable only
 * if it is written again. So the versions of a sector are just what a power cut may leave of it:
 *
 *	newest -> ... -> ... -> durable         a list without a durable end stands on zeros
 *
 * The size is kept the same way: the durable one, and all it has been since. Cutting a file off is a version of zeros
 * for each sector beyond, so a crash may bring back what was there, while reads of a file that grew again do not.
 *
 * Invariants: at most one version of a sector is durable, and it is the last. Newest contents beyond the size are
 *             zeros, except for what a direct write that has not ended put there.
 * Locking:    none: nothing here is a place to switch threads, so each function is one step.
 */
#include <string.h>
#include "disk-store.h"
#include "sched.h"
#include "util.h"

#define SECTORS         (DISK_UNIT / SIM_SECTOR)
#define POOL_VERSIONS   64

struct disk_version {
	struct disk_version *older;
	uint64_t id;                    /* the write that made it */
	bool durable;
	bool zeros;                     /* and data[] means nothing */
	bool forsaken;                  /* a flush of it failed: no later one makes it durable, as the kernel calls it clean */
	unsigned char data[SIM_SECTOR];
};

struct disk_unit {
	uint64_t index;
	bool allocated;                 /* has space */
	bool written;                   /* and is no hole for lseek(): it was written, not only reserved */
	bool settled;                   /* the newest version of each sector is durable: no flush need look */
	struct disk_version *newest[SECTORS];
};

/* --- memory ----------------------------------------------------------------------------------------------- */

/* Not malloc(): that is a place to switch threads, and one where faults strike. */
void *disk_alloc(size_t bytes)
{
	void *p = heap_alloc(bytes, 16);

	if (!p)
		sim_fail("disk: no memory left in this world");
	return memset(p, 0, bytes);
}

static struct disk_version *version_get(struct disk_pool *pool)
{
	struct disk_version *v = pool->free;

	if (!v) {
		v = heap_alloc(POOL_VERSIONS * sizeof(*v), 16);
		if (!v)
			sim_fail("disk: no memory left in this world");
		for (unsigned i = 0; i < POOL_VERSIONS; i++)
			v[i].older = i + 1 < POOL_VERSIONS ? &v[i + 1] : NULL;
	}
	pool->free = v->older;
	return v;
}

static void versions_put(struct disk_pool *pool, struct disk_version *v)
{
	while (v) {
		struct disk_version *older = v->older;

		v->older = pool->free;
		pool->free = v;
		v = older;
	}
}

/* Room for one more in an array that doubles; the old one is dropped with the world. */
static void *with_room(void *array, unsigned nr, unsigned *room, size_t each)
{
	if (nr < *room)
		return array;
	*room = *room ? 2 * *room : 32;

	void *larger = disk_alloc(*room * each);

	if (nr)
		memcpy(larger, array, nr * each);
	return larger;
}

/* --- units ------------------------------------------------------------------------------------------------ */

void store_init(struct disk_store *s, struct disk_pool *pool)
{
	*s = (struct disk_store){ .pool = pool };
}

/* Place of the first unit from @index on. */
static unsigned place_of(const struct disk_store *s, uint64_t index)
{
	unsigned low = 0, high = s->nr_units;

	if (s->hint < high && s->units[s->hint]->index == index)
		return s->hint;
	while (low < high) {
		unsigned mid = low + (high - low) / 2;

		if (s->units[mid]->index < index)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static struct disk_unit *find(struct disk_store *s, uint64_t index)
{
	s->hint = place_of(s, index);
	return s->hint < s->nr_units && s->units[s->hint]->index == index ? s->units[s->hint] : NULL;
}

static struct disk_unit *find_or_make(struct disk_store *s, uint64_t index)
{
	struct disk_unit *u = find(s, index);

	if (u)
		return u;
	u = disk_alloc(sizeof(*u));
	u->index = index;
	s->units = with_room(s->units, s->nr_units, &s->room_units, sizeof(s->units[0]));
	memmove(&s->units[s->hint + 1], &s->units[s->hint], (s->nr_units - s->hint) * sizeof(s->units[0]));
	s->units[s->hint] = u;
	s->nr_units++;
	return u;
}

static void give_space(struct disk_store *s, struct disk_unit *u)
{
	s->pool->allocated += !u->allocated;
	u->allocated = true;
}

static void take_space(struct disk_store *s, struct disk_unit *u)
{
	s->pool->allocated -= u->allocated;
	u->allocated = u->written = false;
}

uint64_t store_allocated(const struct disk_store *s)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < s->nr_units; i++)
		n += s->units[i]->allocated;
	return n * DISK_UNIT;
}

uint64_t store_missing(const struct disk_store *s, uint64_t pos, uint64_t len)
{
	uint64_t end = div_round_up(pos + len, DISK_UNIT);
	uint64_t missing = len ? end - pos / DISK_UNIT : 0;

	for (unsigned i = place_of(s, pos / DISK_UNIT); len && i < s->nr_units && s->units[i]->index < end; i++)
		missing -= s->units[i]->allocated;
	return missing;
}

void store_allocate(struct disk_store *s, uint64_t pos, uint64_t len)
{
	for (uint64_t i = pos / DISK_UNIT; len && i < div_round_up(pos + len, DISK_UNIT); i++)
		give_space(s, find_or_make(s, i));
}

void store_mark_data(struct disk_store *s, uint64_t pos, uint64_t len)
{
	uint64_t end = div_round_up(pos + len, DISK_UNIT);

	for (unsigned i = place_of(s, pos / DISK_UNIT); len && i < s->nr_units && s->units[i]->index < end; i++)
		s->units[i]->written = s->units[i]->allocated;
}

bool store_seek(struct disk_store *s, uint64_t pos, bool data, uint64_t *out)
{
	if (pos >= s->size)
		return false;
	for (unsigned i = place_of(s, pos / DISK_UNIT); i < s->nr_units; i++) {
		const struct disk_unit *u = s->units[i];
		uint64_t start = u->index * DISK_UNIT;

		if (!data && start > pos)
			break;
		if (data && u->written) {
			*out = max_u64(pos, start);
			return *out < s->size;
		}
		if (!data) {
			if (!u->written)
				break;
			pos = start + DISK_UNIT;
		}
	}
	*out = min_u64(pos, s->size);           /* the end of the file counts as a hole */
	return !data;
}

/* --- contents --------------------------------------------------------------------------------------------- */

static bool holds_zeros(const struct disk_version *v) { return !v || v->zeros; }

static void copy_out(const struct disk_version *v, unsigned off, void *buf, unsigned len)
{
	if (holds_zeros(v))
		memset(buf, 0, len);
	else
		memcpy(buf, v->data + off, len);
}

/* A new version of sector @k of @u, to be filled. */
static struct disk_version *push(struct disk_store *s, struct disk_unit *u, unsigned k, uint64_t id)
{
	struct disk_version *v = version_get(s->pool);

	u->settled = false;
	v->older = u->newest[k];
	v->id = id;
	v->durable = v->zeros = v->forsaken = false;
	u->newest[k] = v;
	return v;
}

void store_write(struct disk_store *s, uint64_t pos, const void *data, unsigned len, uint64_t id)
{
	struct disk_unit *u = find_or_make(s, pos / DISK_UNIT);
	unsigned k = pos % DISK_UNIT / SIM_SECTOR, off = (unsigned)(pos % SIM_SECTOR);
	const struct disk_version *old = u->newest[k];
	struct disk_version *v = push(s, u, k, id);

	give_space(s, u);
	if (len < SIM_SECTOR)
		copy_out(old, 0, v->data, SIM_SECTOR);
	memcpy(v->data + off, data, len);
}

void store_read(struct disk_store *s, uint64_t pos, void *buf, uint64_t len)
{
	for (char *to = buf; len; ) {
		const struct disk_unit *u = find(s, pos / DISK_UNIT);
		unsigned off = (unsigned)(pos % SIM_SECTOR);
		unsigned n = (unsigned)min_u64(len, SIM_SECTOR - off);

		if (u) {
			copy_out(u->newest[pos % DISK_UNIT / SIM_SECTOR], off, to, n);
		} else {
			n = (unsigned)min_u64(len, DISK_UNIT - pos % DISK_UNIT);
			memset(to, 0, n);
		}
		pos += n;
		to += n;
		len -= n;
	}
}

/* Bytes [@from, @to) of sector @k. */
static void zero_in_sector(struct disk_store *s, struct disk_unit *u, unsigned k, unsigned from, unsigned to, uint64_t id)
{
	const struct disk_version *old = u->newest[k];

	if (holds_zeros(old))
		return;

	struct disk_version *v = push(s, u, k, id);

	v->zeros = from == 0 && to == SIM_SECTOR;
	if (!v->zeros) {
		memcpy(v->data, old->data, SIM_SECTOR);
		memset(v->data + from, 0, to - from);
	}
}

void store_zero(struct disk_store *s, uint64_t pos, uint64_t end, uint64_t id)
{
	for (unsigned i = place_of(s, pos / DISK_UNIT); i < s->nr_units; i++) {
		struct disk_unit *u = s->units[i];

		for (unsigned k = 0; k < SECTORS; k++) {
			uint64_t start = u->index * DISK_UNIT + k * SIM_SECTOR;
			unsigned from = (unsigned)(max_u64(pos, start) - start);
			unsigned to = (unsigned)(min_u64(max_u64(end, start), start + SIM_SECTOR) - start);

			if (from < to)
				zero_in_sector(s, u, k, from, to, id);
		}
		if (u->index >= end / DISK_UNIT)
			break;
	}
}

void store_clear(struct disk_store *s, uint64_t pos, uint64_t len, bool give_back, uint64_t id)
{
	uint64_t end = pos + len;

	store_zero(s, pos, end, id);
	for (unsigned i = place_of(s, div_round_up(pos, DISK_UNIT)); i < s->nr_units; i++) {
		if ((s->units[i]->index + 1) * DISK_UNIT > end)
			break;
		if (give_back)
			take_space(s, s->units[i]);
		s->units[i]->written = false;
	}
}

/* --- size ------------------------------------------------------------------------------------------------- */

static void set_size(struct disk_store *s, uint64_t size, uint64_t id)
{
	s->sizes = with_room(s->sizes, s->nr_sizes, &s->room_sizes, sizeof(s->sizes[0]));
	s->sizes[s->nr_sizes].size = size;
	s->sizes[s->nr_sizes++].id = id;
	s->size = size;
}

void store_grow(struct disk_store *s, uint64_t size, uint64_t id)
{
	if (size > s->size)
		set_size(s, size, id);
}

void store_truncate(struct disk_store *s, uint64_t size, uint64_t id)
{
	if (size < s->size) {
		store_zero(s, size, UINT64_MAX, id);
		for (unsigned i = place_of(s, div_round_up(size, DISK_UNIT)); i < s->nr_units; i++)
			take_space(s, s->units[i]);
	}
	if (size != s->size)
		set_size(s, size, id);
}

/* --- flush and crash -------------------------------------------------------------------------------------- */

static bool covers(const struct disk_cover *c, uint64_t id)
{
	if (id >= c->before)
		return false;
	for (unsigned i = 0; i < c->nr_in_flight; i++)
		if (c->in_flight[i] == id)
			return false;
	return true;
}

/* A flush that began later and ended sooner may have gone further: what is durable stays so. */
static void flush_sector(struct disk_store *s, struct disk_version *v, const struct disk_cover *c)
{
	while (v && !v->durable && (v->forsaken || !covers(c, v->id)))
		v = v->older;
	if (!v || v->durable)
		return;
	v->durable = true;
	versions_put(s->pool, v->older);
	v->older = NULL;
}

static void flush_unit(struct disk_store *s, struct disk_unit *u, const struct disk_cover *c)
{
	u->settled = true;
	for (unsigned k = 0; k < SECTORS; k++) {
		flush_sector(s, u->newest[k], c);
		u->settled &= !u->newest[k] || u->newest[k]->durable;
	}
}

void store_flush(struct disk_store *s, const struct disk_cover *c)
{
	unsigned n = s->nr_sizes;

	for (unsigned i = 0; i < s->nr_units; i++)
		if (!s->units[i]->settled)
			flush_unit(s, s->units[i], c);
	while (n && !covers(c, s->sizes[n - 1].id))
		n--;
	if (!n)
		return;
	s->durable_size = s->sizes[n - 1].size;
	s->nr_sizes -= n;
	memmove(s->sizes, s->sizes + n, s->nr_sizes * sizeof(s->sizes[0]));
}

/* Cutting off is the filesystem's, whose journal keeps it; so are sizes. */
void store_flush_failed(struct disk_store *s, const struct disk_cover *c)
{
	for (unsigned i = 0; i < s->nr_units; i++)
		for (unsigned k = 0; k < SECTORS; k++)
			for (struct disk_version *v = s->units[i]->newest[k]; v && !v->durable; v = v->older)
				v->forsaken |= !v->zeros && covers(c, v->id);
}

/* What of one sector is there after the crash; NULL: zeros. */
static const struct disk_version *survivor(const struct disk_version *newest, enum disk_crash how,
					   struct sim_rng *r)
{
	const struct disk_version *v;
	uint64_t back, choices = 0;

	if (how == DISK_KILL || how == DISK_POWER_NEWEST)
		return newest;
	for (v = newest; v; v = v->older)
		choices += v->older || v->durable ? 1 : 2;      /* the last one that is not durable stands on zeros */
	if (choices < 2)
		return newest;
	back = how == DISK_POWER_OLDEST ? choices - 1 : sim_below(r, choices);
	for (v = newest; back; back--)
		v = v->older;
	return v;
}

uint64_t store_image(struct disk_store *s, enum disk_crash how, struct sim_rng *r, void *buf, uint64_t max)
{
	uint64_t size = s->size;

	if (how == DISK_POWER_OLDEST) {
		size = s->durable_size;
	} else if (how == DISK_POWER_RANDOM) {
		uint64_t which = sim_below(r, s->nr_sizes + 1);

		size = which ? s->sizes[which - 1].size : s->durable_size;
	}
	max = min_u64(max, size);
	memset(buf, 0, max);
	for (unsigned i = 0; i < s->nr_units && s->units[i]->index * DISK_UNIT < max; i++) {
		for (unsigned k = 0; k < SECTORS; k++) {
			uint64_t pos = s->units[i]->index * DISK_UNIT + k * SIM_SECTOR;
			const struct disk_version *v = survivor(s->units[i]->newest[k], how, r);

			if (pos < max)
				copy_out(v, 0, (char *)buf + pos, (unsigned)min_u64(SIM_SECTOR, max - pos));
		}
	}
	return size;
}
