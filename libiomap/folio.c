/*
 * folio.c - lock, references and sequence counts of one piece of cached memory
 *
 * The folio lock is a bit in the descriptor; who must sleep for it sleeps in the zone's wait table and leaves FOLIO_WAITERS
 * behind, so that an uncontended unlock is one atomic instruction. A folio locked for a read belongs to the request from
 * submission on: lockdep forgets it, and the completion unlocks it with folio_unlock_by_io().
 *
 * Invariants: refs of a cached folio >= 1; identity and content counts only ever grow, even over reuse, because a reader
 *             may hold a stale pointer.
 * Kernel:     folio_lock(), folio_put() in mm/. Differs: descriptors are type-stable, so a failed folio_tryget() is harmless.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "folio.h"
#include "mutant.h"
#include "rcu.h"

int folio_alloc(struct zone *z, unsigned order, struct iomap_folio **out)
{
	struct iomap_folio *f;
	int ret = arena_alloc(&z->arena, order, &f);

	if (ret)
		return ret;
	store_relaxed(&f->mapping, NULL);
	store_relaxed(&f->index, 0);
	store_relaxed(&f->ifs, NULL);
	for (unsigned i = 0; i < IFS_MAPS; i++)
		store_relaxed(&f->small[i], 0);
	store_relaxed(&f->stable, 0);
	f->tries = 0;
	f->error = 0;
	f->next = f->prev = FRAME_NONE;
	store_relaxed(&f->flags, FOLIO_LOCKED);
	lockdep_acquire(LOCK_FOLIO, f, 0, true);
	/* pairs with folio_tryget(): who gets a reference sees the fields above */
	store_release(&f->refs, 1);
	*out = f;
	return 0;
}

bool folio_tryget(struct iomap_folio *f)
{
	uint32_t refs = load_relaxed(&f->refs);

	while (refs)
		if (cmpxchg_acquire(&f->refs, &refs, refs + 1))
			return true;
	return false;
}

void folio_get(struct iomap_folio *f)
{
	uint32_t refs = add_relaxed(&f->refs, 1);       /* the caller has one already */

	IOMAP_BUG_ON(!refs);
	(void)refs;
}

void folio_put(struct zone *z, struct iomap_folio *f)
{
	uint32_t refs = sub_acq_rel(&f->refs, 1);

	IOMAP_BUG_ON(!refs);
	if (refs != 1)
		return;
	IOMAP_BUG_ON(folio_mapping(f));
	IOMAP_BUG_ON(folio_flags(f) & (FOLIO_DIRTY | FOLIO_WRITEBACK | FOLIO_SMALL | FOLIO_MAIN | FOLIO_BEHIND | FOLIO_STATE_LOCK));
	arena_free(&z->arena, f, folio_order(f));
}

/* --- the folio lock --------------------------------------------------------------------------------------- */

static bool take(struct iomap_folio *f)
{
	return !(or_acquire(&f->flags, FOLIO_LOCKED) & FOLIO_LOCKED);
}

static bool take_arg(void *f) { return take(f); }

bool folio_trylock(struct iomap_folio *f)
{
	if ((folio_flags(f) & FOLIO_LOCKED) || !take(f))
		return false;
	lockdep_acquire(LOCK_FOLIO, f, folio_index(f), true);
	return true;
}

void folio_lock(struct zone *z, struct iomap_folio *f)
{
	might_sleep();
	lockdep_acquire(LOCK_FOLIO, f, folio_index(f), false);
	if (!take(f))
		wait_until(&z->waits, f, &f->flags, FOLIO_WAITERS, take_arg, f);
}

void folio_unlock_by_io(struct zone *z, struct iomap_folio *f)
{
	uint32_t old;

	if (MUTANT(M_WAKE_BEFORE_CLEAR))
		folio_wake(z, f);
	old = and_release(&f->flags, ~(uint32_t)FOLIO_LOCKED);
	IOMAP_BUG_ON(!(old & FOLIO_LOCKED));
	if ((old & FOLIO_WAITERS) && !MUTANT(M_WAKE_BEFORE_CLEAR))
		wait_wake(&z->waits, f, &f->flags, FOLIO_WAITERS);
}

void folio_unlock(struct zone *z, struct iomap_folio *f)
{
	lockdep_release(f);
	folio_unlock_by_io(z, f);
}

static bool is_unlocked(void *arg)
{
	return !(load_acquire(&((struct iomap_folio *)arg)->flags) & FOLIO_LOCKED);
}

void folio_wait_unlocked(struct zone *z, struct iomap_folio *f)
{
	might_sleep();
	if (!is_unlocked(f))
		wait_until(&z->waits, f, &f->flags, FOLIO_WAITERS, is_unlocked, f);
}

void folio_wake(struct zone *z, struct iomap_folio *f)
{
	fence_full();   /* the change before the look at the bit; wait_until() sets the bit before it looks at the state */
	if (folio_flags(f) & FOLIO_WAITERS)
		wait_wake(&z->waits, f, &f->flags, FOLIO_WAITERS);
}

struct writeback_wait { struct iomap_folio *folio; unsigned looks; };

static bool writeback_done_or_tired(void *arg)
{
	struct writeback_wait *w = arg;

	return !folio_is_writeback(w->folio) || !w->looks--;
}

static bool writeback_done(void *f) { return !folio_is_writeback(f); }

void folio_wait_writeback(struct zone *z, struct iomap_folio *f)
{
	struct writeback_wait w = { f, 4 };

	might_sleep();
	if (!folio_is_writeback(f))
		return;
	wait_until(&z->waits, f, &f->flags, FOLIO_WAITERS, writeback_done_or_tired, &w);
	if (!folio_is_writeback(f))
		return;
	/*
	 * Blocks are put in flight under the folio lock only: with it held, what is in flight can only become
	 * less.
	 */
	folio_lock(z, f);
	wait_until(&z->waits, f, &f->flags, FOLIO_WAITERS, writeback_done, f);
	folio_unlock(z, f);
}

/* --- the state lock --------------------------------------------------------------------------------------- */

void folio_state_lock(struct iomap_folio *f)
{
	lockdep_acquire(LOCK_STATE, &f->small, 0, false);
	for (unsigned spins = 0; or_acquire(&f->flags, FOLIO_STATE_LOCK) & FOLIO_STATE_LOCK; spins++)
		plat_relax(spins);
}

void folio_state_unlock(struct iomap_folio *f)
{
	and_release(&f->flags, ~(uint32_t)FOLIO_STATE_LOCK);
	lockdep_release(&f->small);     /* a thread's own list: as long as it is there, nobody else has to believe the lock is free */
}

/* --- sequence counts -------------------------------------------------------------------------------------- */

void folio_identity_begin(struct iomap_folio *f)
{
	uint32_t was = add_relaxed(&f->identity, 1);

	IOMAP_BUG_ON(was & 1);
	(void)was;
	fence_release();        /* odd before any field changes; pairs with the reader's fence_acquire() */
}

void folio_identity_end(struct iomap_folio *f)
{
	uint32_t now = load_relaxed(&f->identity);

	IOMAP_BUG_ON(!(now & 1));
	store_release(&f->identity, now + 1);   /* pairs with folio_identity() */
}

void folio_content_begin(struct iomap_folio *f, uint64_t off, uint64_t len)
{
	struct iomap_folio *last = folio_segment(f, off + len - 1);

	for (struct iomap_folio *s = folio_segment(f, off); s <= last; s += CONTENT_FRAMES) {
		IOMAP_BUG_ON(load_relaxed(&s->content) & 1);
		add_relaxed(&s->content, 1);
	}
	fence_release();        /* odd before any byte changes; pairs with the reader's fence_acquire() */
}

void folio_content_end(struct iomap_folio *f, uint64_t off, uint64_t len)
{
	struct iomap_folio *last = folio_segment(f, off + len - 1);

	for (struct iomap_folio *s = folio_segment(f, off); s <= last; s += CONTENT_FRAMES)
		store_release(&s->content, load_relaxed(&s->content) + 1);      /* pairs with the reader's load_acquire() */
}

#ifdef IOMAP_SIM
#define COPY_PIECE 1024

/* At least two pieces, so that nothing is ever copied in one step. */
static size_t piece(size_t done, size_t len)
{
	size_t most = len > 2 * COPY_PIECE ? COPY_PIECE : (len + 1) / 2;

	return len - done < most ? len - done : most;
}

void folio_copy(void *dst, const void *src, size_t len)
{
	for (size_t done = 0, n; done < len; done += n) {
		n = piece(done, len);
		memcpy((char *)dst + done, (const char *)src + done, n);
		ATOMIC_POINT();
	}
}

void folio_zero(void *dst, size_t len)
{
	for (size_t done = 0, n; done < len; done += n) {
		n = piece(done, len);
		memset((char *)dst + done, 0, n);
		ATOMIC_POINT();
	}
}

void seq_copy(void *dst, const void *src, size_t len) { folio_copy(dst, src, len); }
#elif defined(IOMAP_TSAN) || defined(__SANITIZE_ADDRESS__)
/* A race, or a copy from a frame that has just been freed, is what this is for: no sanitizer looks on. */
#ifdef IOMAP_TSAN
__attribute__((no_sanitize("thread"), noinline))
#else
__attribute__((no_sanitize_address, noinline))
#endif
void seq_copy(void *dst, const void *src, size_t len)
{
	volatile char *d = dst;
	const volatile char *s = src;

	for (size_t i = 0; i < len; i++)
		d[i] = s[i];
}
#else
void seq_copy(void *dst, const void *src, size_t len)
{
	memcpy(dst, src, len);
}
#endif

void folio_describe(const struct iomap_folio *f, char *buf, size_t len)
{
	static const struct { uint32_t bit; const char *name; } names[] = {
		{ FOLIO_LOCKED, "locked" }, { FOLIO_WAITERS, "waiters" }, { FOLIO_UPTODATE, "uptodate" },
		{ FOLIO_DIRTY, "dirty" }, { FOLIO_WRITEBACK, "writeback" }, { FOLIO_FAILED, "failed" },
		{ FOLIO_REFERENCED, "referenced" }, { FOLIO_READAHEAD, "readahead" }, { FOLIO_SMALL, "small" },
		{ FOLIO_MAIN, "main" }, { FOLIO_UNUSED, "unused" }, { FOLIO_DROPBEHIND, "dropbehind" }, { FOLIO_BEHIND, "behind" },
	};
	int n = snprintf(buf, len, "folio index %llu order %u refs %u identity %u", (unsigned long long)folio_index(f),
			 folio_order(f), load_relaxed(&f->refs), load_relaxed(&f->identity));

	for (unsigned i = 0; i < ARRAY_SIZE(names) && n > 0 && (size_t)n < len; i++)
		if (folio_flags(f) & names[i].bit)
			n += snprintf(buf + n, len - (size_t)n, " %s", names[i].name);
}
