// SPDX-License-Identifier: Apache-2.0
#include "base/arena.hpp"

#include <memory>
#include <new>
#include <vector>

namespace heed::base {
namespace {

constexpr std::align_val_t kLine{64};
constexpr std::int64_t kLeast = std::int64_t{256} << 10;  // memory that is not touched costs nothing

struct Free {
  void operator()(std::byte* memory) const noexcept { ::operator delete[](memory, kLine); }
};
using Block = std::unique_ptr<std::byte[], Free>;

/// Null where memory does not suffice.
Block allocate(std::int64_t bytes) noexcept { return Block(new (kLine, std::nothrow) std::byte[static_cast<std::size_t>(bytes)]); }

/// A stack of blocks. Leases are last in, first out; when the last one ends, one block with room for everything that was ever needed at
/// once, and for half as much again, takes the place of the many: calls over a growing cache then allocate a logarithmic number of times.
class Arena {
 public:
  std::byte* push(std::int64_t bytes) {
    if (blocks_.empty() || used_ + bytes > size_) {
      std::int64_t size = bytes > size_ ? bytes : size_ > kLeast ? size_ : kLeast;
      Block block = allocate(size);
      if (!block && size > bytes) {  // the generous size may be that of a call that memory had room for once, and never again
        block = allocate(size = bytes);
        peak_ = live_;
      }
      if (!block) throw std::bad_alloc();
      blocks_.push_back({std::move(block), used_, size_});
      size_ = size;
      used_ = 0;
    }
    std::byte* data = blocks_.back().memory.get() + used_;
    used_ += bytes;
    live_ += bytes;
    peak_ = live_ > peak_ ? live_ : peak_;
    return data;
  }

  void pop(std::int64_t bytes) noexcept {
    used_ -= bytes;
    live_ -= bytes;
    if (used_ > 0) return;
    if (blocks_.size() > 1) {
      used_ = blocks_.back().previous_used;
      size_ = blocks_.back().previous_size;
      blocks_.pop_back();
    }
    if (live_ == 0 && size_ < peak_) {  // the next push allocates one block of this size
      blocks_.clear();
      size_ = peak_ + peak_ / 2;
    }
  }

 private:
  struct Entry {
    Block memory;
    std::int64_t previous_used, previous_size;
  };
  std::vector<Entry> blocks_;
  std::int64_t used_ = 0;  // of the last block
  std::int64_t size_ = 0;  // of the last block, or of the next one when there is none
  std::int64_t live_ = 0, peak_ = 0;
};

Arena& arena() {
  thread_local Arena instance;
  return instance;
}

}  // namespace

Scratch::Scratch(std::int64_t bytes) : data_(nullptr), bytes_(0) {
  constexpr std::int64_t kMost = std::int64_t{1} << 62;  // far above any address space, far below an overflow of the sums
  if (bytes > kMost) throw std::bad_alloc();
  bytes_ = round_up_to_line(bytes > 0 ? bytes : 1);
  data_ = arena().push(bytes_);
}

Scratch::~Scratch() { arena().pop(bytes_); }

}  // namespace heed::base
