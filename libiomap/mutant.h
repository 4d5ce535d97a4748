/*
 * mutant.h - deliberate bugs, one a build, to show that the tests would find them
 *
 * A test that never failed has proved little. Each mutant is one mistake that authors of page caches make, at the
 * place where it would be made. Built with -DIOMAP_MUTANT=k the library has mistake k, and the simulator, the models
 * or the unit tests must fail. `make mutants` tries them all; tests/mutants.txt says what each does, what finds it.
 *
 * In every other build IOMAP_MUTANT is 0 and MUTANT() a constant false, so the compiler drops the mutants. Who reads
 * the sources may do the same: pass over what stands under `if (MUTANT(…))`, and take `if (!MUTANT(…))` for granted.
 */
#ifndef IOMAP_MUTANT_H
#define IOMAP_MUTANT_H

#ifndef IOMAP_MUTANT
#define IOMAP_MUTANT 0
#endif
#define MUTANT(k) (IOMAP_MUTANT == (k))

enum mutant {
	M_UPTODATE_BEFORE_COPY = 1,     /* a block is uptodate before its bytes are there */
	M_NO_RECHECK           = 2,     /* a folio just locked is taken for the one that was looked up */
	M_SEEN_AS_CLEAN        = 3,     /* no mark says dirty or in flight between the two */
	M_CHARGE_KEPT          = 4,     /* what a truncate cancels stays charged as dirty */
	M_CONTENT_NOT_COUNTED  = 5,     /* a writer does not say that it is copying */
	M_IDENTITY_NOT_COUNTED = 6,     /* a folio leaves the cache without a word to readers */
	M_TOWRITE_TAKEN        = 7,     /* a pass clears TOWRITE before it has claimed, under the eyes of other sync passes */
	M_FSYNC_NO_FLUSH       = 8,     /* an fsync that finds nothing dirty does not flush */
	M_FLUSH_JOINED_LATE    = 9,     /* a flush under way counts for who came after it began */
	M_WAKE_BEFORE_CLEAR    = 10,    /* the folio lock's waiters are woken before it is free */
	M_TOUCH_AFTER_PUT      = 11,    /* a read's completion sets bits of a folio it has handed over */
	M_MERGED_ERROR_DROPPED = 12,    /* only the first folio of a failed request hears of it */
	M_SIZE_BEFORE_DATA     = 13,    /* i_size is raised before the data is in the cache */
	M_READ_OVER_DIRTY      = 14,    /* a read of missing blocks runs on over newer ones */
	M_IN_FLIGHT_TWICE      = 15,    /* a block in flight is claimed again */
	M_TAIL_PAST_SIZE       = 16,    /* the last block is written whole */
	M_TRUNCATE_NO_WAIT     = 17,    /* a truncate does not wait for requests beyond the new size */
	M_TRIM_NOT_ZEROED      = 18,    /* bytes cut off inside a folio stay there */
	M_GARBAGE_BEYOND_END   = 19,    /* a folio read at the file's end keeps what its frames held */
	M_COMPLETION_CLEANS    = 20,    /* a completion takes the dirty bit of a write that came meanwhile */
	M_SPLIT_LOSES_DIRTY    = 22,    /* the right half of a split folio is clean */
	M_UNFLUSHED_NOT_NOTED  = 23,    /* a completed write is not noted as waiting for a flush */
	M_SHORT_IS_FULL        = 24,    /* a short write counts as a whole one */
	M_EXTEND_NO_ORDER      = 25,    /* requests beyond the device's size do not wait for each other */
	M_GOOD_CLEARS_ERROR    = 26,    /* a good write forgets the error of an earlier one */
	M_APPEND_NO_LOCK       = 27,    /* steps of two APPEND calls mix */
	M_FREE_NO_GRACE        = 28,    /* a tree node is freed while readers may be in it */
	M_DOUBLE_PUT           = 29,    /* who loses the race to create a folio drops it twice */
	M_LEAKED_REF           = 30,    /* a lookup that must be repeated keeps its reference */
	M_WAKE_ONE             = 31,    /* of those who wait, one is woken */
	M_WRITE_INTO_FLIGHT    = 32,    /* a writer changes memory that a request is reading */
	M_CHARGED_AGAIN        = 33,    /* a thread is charged for blocks that were dirty already */
	M_SYNC_SKIPS_BUSY      = 34,    /* fsync takes a dirty block in flight for written */
	M_SYNC_NO_WAIT         = 35,    /* fsync does not wait for what others have in flight */
	M_SIZE_GROWN_BACK      = 36,    /* fsync sets a size that a truncate has taken back */
	M_GROW_BEFORE_DATA     = 37,    /* a file grows on the device before what lies below is written */
	M_NO_SECOND_LOOK       = 38,    /* an inode turned dirty just now leaves the flusher's lists */
	M_FLUSH_ERROR_ONCE     = 39,    /* the fsync after a failed flush returns 0 */
	M_LOST_NOT_KEPT        = 40,    /* what a failed flush may have lost is not remembered */
	M_PAGE_SHARED          = 41,    /* two blocks of one page are in different requests */
	M_LATE_NOT_LOST        = 42,    /* what completes after a flush has failed is not taken for lost with it */
	M_RETRY_OUTRUN         = 43,    /* RETRY trusts its writes though another flush has failed since */
	M_TAIL_NOT_AWAITED     = 44,    /* a direct write goes to the page of a buffered one on its way */
	M_GRANULE_PASSED       = 45,    /* what is appended in a granule whose first part is on its way is written after what lies behind */
	M_FAILING_NOT_SEEN     = 46,    /* a look at a file's blocks is believed though a failed request is telling them so just then */
	M_PUNCH_NO_LOCK        = 50,    /* what a punch takes away may still be written out after it */
	M_PUNCH_KEEPS_SPACE    = 51,    /* a punched block is still taken for allocated */
	M_PUNCH_PAST_END       = 52,    /* a punch cancels what is dirty behind its range in the same folio, too */
	M_SEEK_DEVICE_FIRST    = 53,    /* lseek asks the cache after the device: what was written in between is in neither */
	M_EDGE_NOT_DIRTY       = 54,    /* the zeros at the edges of a punched range stay in memory */
	M_DIRECT_LETS_READERS_IN = 60,  /* a direct write lets readers fill the cache while the device is written */
	M_DIRECT_READ_STALE    = 61,    /* a direct read does not write what is dirty first */
	M_DIRECT_READ_TORN     = 62,    /* a direct read does not look whether writeback came in between */
	M_DIRECT_NOT_UNFLUSHED = 63,    /* a direct write is not noted as waiting for a flush */
	M_THROUGH_OTHERS       = 64,    /* a write-through write does not wait for its blocks in others' requests */
	M_THROUGH_RETRIED      = 70,    /* a write-through write that failed returns 0 while others try its blocks again */
	M_MAP_NOT_ASKED        = 65,    /* a mapping is believed without asking whether it still holds */
	M_END_SKIPPED          = 66,    /* an iomap_begin() whose body failed gets no iomap_end() */
	M_NEW_NOT_ZEROED       = 67,    /* the rest of a block allocated just now is read, not zeroed */
	M_SOURCE_IGNORED       = 68,    /* a copy on write takes the other bytes from where it goes, not from where they are */
	M_END_IO_LATE          = 69,    /* blocks leave flight before the engine's end_io() */
	M_DROP_NO_RECHECK      = 55,    /* a folio that was clean when it was queued is dropped without another look */
	M_STILL_DROPPED        = 56,    /* an ordinary write leaves a DONTCACHE folio droppable */
	M_FLIP_NOT_CHARGED     = 57,    /* the DONTCACHE counter does not move when the flag goes */
	M_BEHIND_FORGOTTEN     = 58,    /* a folio that is busy when it should be dropped is not looked at again */
	M_OLD_MADE_BEHIND      = 59,    /* a DONTCACHE write makes a folio droppable that was cached before */
};

#endif
