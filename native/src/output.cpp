#include "rdzv/output.hpp"

#include <utility>

namespace rdzv {

namespace {
constexpr std::size_t kForgetBytes = 64 * 1024;
constexpr std::size_t kForgetChunks = 64;
}  // namespace

std::string& Output::tail() {
  if (chunks_.back().shared) {
    chunks_.emplace_back();
  }
  return chunks_.back().copied;
}

std::size_t Output::gather(iovec* parts, std::size_t max) const {
  std::size_t count = 0;
  std::size_t skip = sent_;
  const auto add = [&](std::string_view part) {
    part.remove_prefix(skip);
    skip = 0;
    parts[count++] = {const_cast<char*>(part.data()), part.size()};
  };
  if (!head_done_ && !head_.empty()) {
    add(head_);
  }
  for (std::size_t i = first_; i < chunks_.size() && count < max; ++i) {
    add(chunks_[i].view());
  }
  return count;
}

void Output::consume(std::size_t count) {
  size_ -= count;
  if (size_ == 0) {
    head_.clear();
    chunks_.clear();
    first_ = sent_ = owned_ = 0;
    head_done_ = false;
    return;
  }
  sent_ += count;
  if (!head_done_) {
    if (sent_ < head_.size()) {
      forget_sent(head_);
      return;
    }
    sent_ -= head_.size();
    owned_ -= head_.size();
    std::string().swap(head_);
    head_done_ = true;
  }
  while (first_ < chunks_.size() && sent_ >= chunks_[first_].view().size()) {
    sent_ -= chunks_[first_].view().size();
    owned_ -= chunks_[first_].copied.size();
    chunks_[first_] = {};
    ++first_;
  }
  if (first_ > kForgetChunks && first_ > chunks_.size() / 2) {
    chunks_.erase(chunks_.begin(), chunks_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }
  if (first_ < chunks_.size()) {
    forget_sent(chunks_[first_].copied);
  }
}

void Output::forget_sent(std::string& copied) {
  // A client that is always a little behind is appended to for ever.
  if (sent_ > kForgetBytes && sent_ > copied.size() / 2 && sent_ <= copied.size()) {
    copied.erase(0, sent_);
    owned_ -= sent_;
    sent_ = 0;
  }
}

void Output::clear() {
  release();
  first_ = sent_ = owned_ = size_ = 0;
  head_done_ = false;
}

std::string Output::release() {
  std::vector<Chunk>().swap(chunks_);
  return std::exchange(head_, {});
}

}  // namespace rdzv
