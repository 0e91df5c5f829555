// Which pages there are, which are free, and how many sequences share each; knows nothing of what they hold.
#pragma once

#include "growable.h"

// A page number is in use, free (it has memory that nobody needs), or absent (it has none).
class Ledger {
public:
    int64_t present() const { return present_count; }
    int64_t used() const { return used_count; }
    int64_t free() const { return present_count - used_count; }
    // Numbers that were ever given out; those above are absent.
    int64_t numbers() const { return pages.count; }
    int32_t references(int64_t page) const { return pages[page].references; }
    bool is_absent(int64_t page) const { return page >= pages.count || !pages[page].is_present; }

    // The lowest absent number from `from` on.
    int64_t absent_from(int64_t from) const;
    // Room for this many numbers in all.
    bool reserve(int64_t numbers) { return pages.reserve(numbers); }
    // An absent number has memory now: it is free. There is room for it.
    void add(int64_t page);
    // A free one has none any more.
    void drop(int64_t page);
    // A free page, now with one user: the one behind `after` (-1: any) if it is free, else the lowest. There is one.
    int64_t take(int64_t after);
    void share(int64_t page) { pages[page].references++; }
    // One user less; free without any.
    void release(int64_t page);
    // The highest free page below `below`, or -1.
    int64_t free_below(int64_t below) const;

    // A mark for a count that a caller makes over pages; 0 between calls.
    int32_t &pending(int64_t page) { return pages[page].pending; }

    bool copy_to(Ledger &other) const;
    void clear() { pages.clear(); }

private:
    struct Page {
        int32_t references, pending;
        bool is_present;

        bool is_free() const { return is_present && references == 0; }
    };

    Growable<Page> pages;
    int64_t present_count = 0, used_count = 0;
    int64_t lowest_free = 0;  // no page below is free
};
