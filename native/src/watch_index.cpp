#include "rdzv/watch_index.hpp"

namespace rdzv {

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
