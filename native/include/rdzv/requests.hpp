// The requests of torch's wire format, on the keyspace of the client that makes them; and those that wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "rdzv/client_context.hpp"
#include "rdzv/keyspace.hpp"
#include "rdzv/output.hpp"
#include "rdzv/payload.hpp"
#include "rdzv/query.hpp"
#include "rdzv/waiter.hpp"

namespace rdzv {

// A client's requests that wait for keys, or for others at a barrier.
class Waits {
 public:
  explicit Waits(ClientContext& client) : client_(client) {}
  Waits(const Waits&) = delete;
  Waits& operator=(const Waits&) = delete;
  ~Waits() { cancel(); }

  // False: it waits for too many keys already, and is refused.
  bool may_wait(std::size_t keys);
  void keep(std::shared_ptr<Waiter> waiter);
  // Sends the answer. False: it is none of these any more.
  bool woken(const Waiter& waiter, Output& reply);
  // All of them.
  void cancel();

 private:
  ClientContext& client_;
  std::vector<std::shared_ptr<Waiter>> waits_;
  std::size_t keys_ = 0;  // of all of them
};

// The keys of a request that begins with their count.
std::vector<KeyView> keys_listed(Fields fields);
// The keys that a request writes.
std::vector<KeyView> keys_written(Query query, Fields fields);
// Whether a request may store something.
bool writes(Query query);
// Not kNone: what is to be stored for it would be too much; `size`: of the whole request.
Refusal lacks_room(Keyspace& keyspace, const Limits& limits, Query query, Fields fields, std::size_t size);

class Requests {
 public:
  explicit Requests(ClientContext& client) : waits(client), client_(client) {}
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  ~Requests() { forget_holders(); }

  // Runs one. What it could not do, for proxies hold the value, `writer` says: see wait_for_holders(). An answer that
  // is not complete has is_listing(): then it is to be run again, when others have had their turn.
  void execute(Query query, Fields fields, Output& reply, Wakes& wakes);

  // A write has found that proxies hold the values: false if they do not any more, and it can be run again. True: it is
  // run again when they have given them up, and nothing else until then.
  bool wait_for_holders(const std::vector<KeyView>& keys);
  // It was run; also when the connection closes.
  void forget_holders();
  // What it waits for has come. False: that is none of these waiters any more.
  bool woken(const Waiter& waiter, Output& reply);

  bool is_listing() const { return listing_ != nullptr; }
  std::size_t gathered() const { return listing_ ? listing_->bytes() : 0; }

  Keyspace::Writer writer;
  Waits waits;

 private:
  // A part at each call.
  void list_keys(Output& reply);
  void wait(Keyspace::Keys keys, Output& reply);
  void barrier(std::string_view key, std::int64_t world_size, Output& reply, Wakes& wakes);

  ClientContext& client_;
  std::unique_ptr<KeyList> listing_;  // the answer to LIST_KEYS, as far as it is gathered
  std::shared_ptr<Waiter> holders_;   // who have to give up a value before the next request
};

}  // namespace rdzv
