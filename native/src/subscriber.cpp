#include "rdzv/subscriber.hpp"

#include <cstring>
#include <new>
#include <utility>

#include "rdzv/framing.hpp"
#include "rdzv/payload.hpp"

namespace rdzv {

namespace {

constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kHead = kLengthBytes + 4 + 1 + 4 + 4;  // length, request id, status, watch, count
constexpr std::size_t kCountAt = kHead - 4;
constexpr std::size_t kEventHead = 1 + 8 + 4 + 4;

}  // namespace

bool Subscriber::push(std::uint32_t watch, const Event& event) {
  const std::lock_guard lock(mutex_);
  if (!waiting_.overflown) {
    try {
      append(watch, event);
    } catch (const std::bad_alloc&) {  // the writer is not to suffer for it
      waiting_.overflown = true;
    }
    if (waiting_.overflown || frames_.size() > most_) {
      waiting_.overflown = true;
      std::string().swap(frames_);
    }
  }
  return !std::exchange(told_, true);
}

void Subscriber::append(std::uint32_t watch, const Event& event) {
  const std::size_t size = kEventHead + event.key.size() + event.value.size();
  if (frames_.empty() || watch_ != watch || frames_.size() - last_ + size > kFrameBytes) {
    last_ = frames_.size();
    watch_ = watch;
    ++waiting_.frames;
    add_number(frames_, std::uint32_t{0});
    add_number(frames_, std::uint32_t{0});
    frames_ += static_cast<char>(FrameStatus::kPush);
    add_number(frames_, watch);
    add_number(frames_, std::uint32_t{0});
  }
  frames_ += static_cast<char>(event.gone);
  add_number(frames_, event.revision);
  add_text(frames_, event.key);
  add_text(frames_, event.value);
  char* const frame = frames_.data() + last_;
  const auto length = static_cast<std::uint32_t>(frames_.size() - last_ - kLengthBytes);
  std::memcpy(frame, &length, sizeof length);
  std::uint32_t count;
  std::memcpy(&count, frame + kCountAt, sizeof count);
  ++count;
  std::memcpy(frame + kCountAt, &count, sizeof count);
  ++waiting_.events;
}

Subscriber::Taken Subscriber::take(Output& reply) {
  const std::lock_guard lock(mutex_);
  if (!frames_.empty()) {
    reply.raw(frames_);
    std::string().swap(frames_);
  }
  told_ = false;
  const Taken taken = waiting_;
  waiting_ = {0, 0, taken.overflown};  // what is missing stays missing
  return taken;
}

void WatchIndex::add(std::string_view prefix, Watch& watch) {
  auto found = buckets_.find(prefix);
  if (found == buckets_.end()) {
    found = buckets_.emplace(std::string(prefix), Bucket{}).first;
    found->second.prefix = found->first;
    ++lengths_[prefix.size()];
  }
  Bucket& bucket = found->second;
  watch.bucket = &bucket;
  watch.position = bucket.watches.size();
  bucket.watches.push_back(&watch);
  ++size_;
}

void WatchIndex::remove(Watch& watch) {
  Bucket& bucket = *watch.bucket;
  bucket.watches.back()->position = watch.position;
  bucket.watches[watch.position] = bucket.watches.back();
  bucket.watches.pop_back();
  --size_;
  if (!bucket.watches.empty()) {
    return;
  }
  const auto length = lengths_.find(bucket.prefix.size());
  if (--length->second == 0) {
    lengths_.erase(length);
  }
  buckets_.erase(buckets_.find(bucket.prefix));
}

}  // namespace rdzv
