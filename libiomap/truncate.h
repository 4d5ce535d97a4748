/*
 * truncate.h - cutting a range out of the cache
 */
#ifndef IOMAP_TRUNCATE_H
#define IOMAP_TRUNCATE_H

#include "mapping.h"

/*
 * Everything at and beyond byte @pos leaves the cache: dirty blocks are cancelled, folios wholly beyond go, the one that
 * straddles is split where it can be and zeroed from @pos on. Waits for requests in flight there. invalidate_lock held
 * exclusively, or nobody else can reach the mapping. Sleeps.
 */
void truncate_from(struct mapping *m, uint64_t pos);
/*
 * Drops clean, unlocked, unused folios wholly inside pages [first, last]; returns how many pages are left. Never
 * waits for I/O.
 */
uint64_t invalidate_clean(struct mapping *m, pgoff_t first, pgoff_t last);
/*
 * Takes every folio that overlaps [*@start, @end) out of the cache, waiting for its lock and for what is in flight, but never one that is
 * dirty: false, and *@start and *@stop are that folio's bytes. Whoever may dirty or add folios there is kept away by the caller. Sleeps.
 */
bool invalidate_range(struct mapping *m, uint64_t *start, uint64_t end, uint64_t *stop);
/* Gives up failed blocks that lie wholly inside [start, end): their contents are read from the device again. */
void discard_failed(struct mapping *m, uint64_t start, uint64_t end);

/* Clean blocks in [start, end) are not believed any more: whole clean folios go, of others their clean blocks. */
void forget_clean(struct mapping *m, uint64_t start, uint64_t end);

/* Waits for a locked folio's requests in flight; locked again on return, maybe not in the mapping any more. */
void truncate_wait_writeback(struct mapping *m, struct iomap_folio *f);

/* Zeroes [off, end of folio) of a locked, idle folio and cancels the blocks that lie wholly beyond. */
void truncate_trim(struct mapping *m, struct iomap_folio *f, uint64_t off);

/* The part of [start, end), whole blocks, that a locked, idle folio holds: zeros in memory, nothing of it dirty any more. */
void truncate_trim_range(struct mapping *m, struct iomap_folio *f, uint64_t start, uint64_t end);
/*
 * Blocks [start, end) leave the cache: dirty ones are cancelled, folios wholly inside go, those that straddle an edge are split
 * where they can be and zeroed inside. Waits for requests in flight there. rwsem and invalidate_lock held exclusively. Sleeps.
 */
void truncate_range(struct mapping *m, uint64_t start, uint64_t end);

#endif
