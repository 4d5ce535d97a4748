/*
 * readahead-window.c - what to read ahead of a reader, page by page
 *
 * A window of pages moves in front of the reader. Part of it the reader asked for; the rest is a guess, and the
 * folio where the guess begins carries a mark. Who meets the mark is reading sequentially, and starts the next
 * window while this one is still unread:
 *
 *      start            mark                  start + size
 *        |-- asked for --|*---- async_size ----|= next window ...
 *
 * Windows grow by 4 or 2 until ra_pages, and with each the order of their folios by 2. Ends are trimmed so that
 * the next window begins aligned for large folios; that is why an early window can be smaller than the one
 * before.
 *
 * There is one state for an open file, not one for each stream in it. A reader that misses where the state does
 * not expect it, and one that meets a mark the state does not know, is recognised by what is cached around it.
 *
 * Invariants: a window has at least one page; no folio begins at or past the end of the file; a folio's index
 *             is aligned to its size, its order is at least min_order.
 * Locking:    none; the caller's.
 * Kernel:     mm/readahead.c, v6.17. Differs: decisions and folio layout are apart from creating folios; no
 *             congestion; where the smallest folio is larger than a page, windows are whole folios.
 */
#include "readahead-window.h"

#define NO_MARK         UINT64_MAX      /* lies in no folio */

void ra_init(struct ra_state *ra, uint32_t ra_pages)
{
	*ra = (struct ra_state){ .ra_pages = ra_pages, .prev_pos = RA_PREV_NONE };
}

/* --- Sizes ------------------------------------------------------------------------------------------------ */

/* The first window of a stream. */
static uint32_t init_size(uint64_t req, uint32_t max)
{
	if (req >= max)
		return max;
	uint64_t n = UINT64_C(1) << log2_ceil(req);

	if (n <= max / 32)
		return (uint32_t)n * 4;
	return n <= max / 4 ? (uint32_t)n * 2 : max;
}

/* The window after one of @size. */
static uint32_t next_size(uint64_t size, uint32_t max)
{
	if (size < max / 16)
		return (uint32_t)size * 4;
	return size <= max / 2 ? (uint32_t)size * 2 : max;
}

/* A single read larger than the window may have its size in one, if the device likes that. */
static uint32_t max_pages(const struct ra_state *ra, uint64_t req, const struct ra_env *env)
{
	if (req > ra->ra_pages && env->io_pages > ra->ra_pages)
		return (uint32_t)min_u64(req, env->io_pages);
	return ra->ra_pages;
}

/* --- Plans ------------------------------------------------------------------------------------------------ */

/* Exactly these pages, in the smallest folios, and nothing about what comes after. */
static void plan_plain(struct ra_plan *plan, pgoff_t index, uint64_t pages, const struct ra_env *env)
{
	*plan = (struct ra_plan){
		.index = round_down(index, UINT64_C(1) << env->min_order),
		.end = min_u64(index + pages, env->file_pages),
		.mark = NO_MARK, .order = env->min_order, .plain = true,
	};
}

/*
 * A window is whole smallest folios, or the next one would begin inside a folio that is there. The mark stays
 * where it is.
 */
static void align_window(struct ra_state *ra, uint32_t min_order)
{
	const uint64_t unit = UINT64_C(1) << min_order;
	const pgoff_t end = round_up(ra->start + ra->size, unit);

	ra->async_size += (uint32_t)(end - (ra->start + ra->size));
	ra->start = round_down(ra->start, unit);
	ra->size = (uint32_t)(end - ra->start);
}

static void plan_window(struct ra_state *ra, struct ra_plan *plan, const struct ra_env *env)
{
	align_window(ra, env->min_order);
	plan_plain(plan, ra->start, ra->size, env);
	plan->mark = ra->start + ra->size - ra->async_size;
	if (env->max_order == 0) {
		ra->order = 0;
		return;
	}
	ra->order = (uint32_t)min_u64(min_u64(ra->order, env->max_order), log2_floor(ra->size));
	ra->order = (uint32_t)max_u64(ra->order, env->min_order);
	plan->order = ra->order;
	plan->plain = false;
}

bool ra_plan_next(struct ra_plan *plan, const struct ra_env *env, struct ra_folio *out)
{
	uint32_t order = plan->order;

	if (plan->plain) {
		order = env->min_order;
		while (plan->index < plan->end && env->cached(env->arg, plan->index))
			plan->index += UINT64_C(1) << order;
	}
	if (plan->index >= plan->end)
		return false;

	if (plan->index & ((UINT64_C(1) << order) - 1))
		order = (uint32_t)__builtin_ctzll(plan->index);
	while (order > env->min_order && plan->index + (UINT64_C(1) << order) > plan->end)
		order--;

	const uint64_t pages = UINT64_C(1) << order;
	*out = (struct ra_folio){
		.index = plan->index, .order = order, .marked = plan->index == round_down(plan->mark, pages),
	};
	plan->index += pages;
	return true;
}

void ra_plan_failed(struct ra_plan *plan, const struct ra_folio *folio)
{
	if (!plan->plain)
		plan->index = folio->index;     /* once more, smaller */
	plan->plain = true;
}

/* --- Decisions -------------------------------------------------------------------------------------------- */

/*
 * How many pages right before @index are cached, at most @max: what a stream that the state forgot has left
 * behind.
 */
static uint64_t history(pgoff_t index, uint32_t max, const struct ra_env *env)
{
	uint64_t n = 0;

	while (n < max && n < index && env->cached(env->arg, index - n - 1))
		n++;
	return n;
}

void ra_sync(struct ra_state *ra, pgoff_t index, uint64_t req_pages, const struct ra_env *env,
	     struct ra_plan *plan)
{
	const uint64_t req = max_u64(req_pages, 1);

	if (ra->ra_pages == 0) {
		plan_plain(plan, index, 1, env);
		return;
	}
	if (ra->random) {
		plan_plain(plan, index, min_u64(req, max_u64(env->io_pages, ra->ra_pages)), env);
		return;
	}

	const uint32_t max = max_pages(ra, req, env);

	/*
	 * At the start, larger than any window, in the page where the last read ended, or in the one after
	 * (unsigned).
	 */
	if (index == 0 || req > max || index - ra->prev_pos / PAGE_BYTES <= 1) {
		ra->start = index;
		ra->size = init_size(req, max);
		ra->async_size = ra->size > req ? ra->size - (uint32_t)req : ra->size / 2;
		ra->order = 0;
		plan_window(ra, plan, env);
		return;
	}

	uint64_t before = history(index, max, env);
	if (before <= req) {
		/* Random, as far as one can see. The state may be another stream's: leave it. */
		plan_plain(plan, index, req, env);
		return;
	}
	if (before == index)
		before *= 2;            /* read from the very start: likely all of it */
	ra->start = index;
	ra->size = (uint32_t)min_u64(before + req, max);
	ra->async_size = 1;
	ra->order = 0;
	plan_window(ra, plan, env);
}

/* Another stream's mark: its window ends where the first page is missing. False: nowhere near. */
static bool find_stream(struct ra_state *ra, pgoff_t index, uint64_t req, uint32_t max, const struct ra_env *env)
{
	pgoff_t start = index + 1;

	while (start - index <= max && env->cached(env->arg, start))
		start++;
	if (start - index > max)
		return false;
	ra->start = start;
	ra->size = next_size(start - index + req, max);
	return true;
}

bool ra_async(struct ra_state *ra, pgoff_t index, uint64_t folio_pages, uint64_t req_pages,
	      const struct ra_env *env, struct ra_plan *plan)
{
	if (ra->ra_pages == 0)
		return false;

	const uint64_t req = max_u64(req_pages, 1);
	const uint32_t max = max_pages(ra, req, env);

	if (index == round_down(ra->start + ra->size - ra->async_size, folio_pages)) {
		ra->start += ra->size;
		ra->size = (uint32_t)max_u64(ra->size, next_size(ra->size, max));
	} else if (!find_stream(ra, index, req, max, env)) {
		return false;
	}

	ra->order += 2;
	const unsigned align_order = (unsigned)min_u64(ra->order, (unsigned)__builtin_ctz(max));
	const pgoff_t end = round_down(ra->start + ra->size, UINT64_C(1) << align_order);

	if (end > ra->start)
		ra->size = (uint32_t)(end - ra->start);
	ra->async_size = ra->size;
	plan_window(ra, plan, env);
	return true;
}
