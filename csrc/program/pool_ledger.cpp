#include "pool_ledger.h"

int64_t Ledger::absent_from(int64_t from) const {
    while (!is_absent(from)) from++;
    return from;
}

void Ledger::add(int64_t page) {
    pages.fill_up_to(page + 1, Page{0, 0, false});
    pages[page].is_present = true;
    present_count++;
    if (page < lowest_free) lowest_free = page;
}

void Ledger::drop(int64_t page) {
    pages[page].is_present = false;
    present_count--;
}

int64_t Ledger::take(int64_t after) {
    int64_t page = after + 1;
    if (after < 0 || page >= pages.count || !pages[page].is_free()) {
        while (!pages[lowest_free].is_free()) lowest_free++;
        page = lowest_free;
    }
    pages[page].references = 1;
    used_count++;
    return page;
}

void Ledger::release(int64_t page) {
    if (--pages[page].references > 0) return;
    used_count--;
    if (page < lowest_free) lowest_free = page;
}

int64_t Ledger::free_below(int64_t below) const {
    int64_t page = below - 1;
    while (page >= 0 && !pages[page].is_free()) page--;
    return page;
}

bool Ledger::copy_to(Ledger &other) const {
    if (!pages.copy_to(other.pages)) return false;
    other.present_count = present_count;
    other.used_count = used_count;
    other.lowest_free = lowest_free;
    return true;
}
