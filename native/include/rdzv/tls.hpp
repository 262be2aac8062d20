// TLS 1.3 under a connection: certificates, and the stream that one socket's bytes are. By OpenSSL; see decision 0055.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "rdzv/limits.hpp"

struct bio_st;
struct ssl_ctx_st;
struct ssl_st;

namespace rdzv {

inline constexpr char kTlsRecord = 0x16;  // the first byte of everybody who begins TLS

// Once before anything else here is used; again does nothing. `library` is linked with libssl: the file of Python's _ssl;
// empty, or without the functions: libssl itself is looked for. Thread-safe. Throws std::runtime_error.
void load_tls(const std::string& library);

// Texts in PEM.
struct Certificates {
  std::string authorities{};  // of the peers; empty: the system's, and clients are not asked for a certificate
  std::string chain{};        // this side's certificate, and those between it and its authority; empty: none
  std::string key{};          // of the certificate, without a password
};

// What streams are made from. Shared, and never changed.
class TlsContext {
 public:
  // Throws std::invalid_argument, with the text that does not fit.
  explicit TlsContext(const Certificates& certificates);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  ssl_ctx_st* get() const { return context_; }
  bool asks_clients() const { return asks_clients_; }

 private:
  ssl_ctx_st* context_;
  const bool asks_clients_;
};

// The certificates of now: those of streams that are there already stay as they are. Thread-safe.
class TlsIdentity {
 public:
  // Throw as TlsContext.
  explicit TlsIdentity(const Certificates& certificates) { renew(certificates); }
  void renew(const Certificates& certificates) {
    auto fresh = std::make_shared<const TlsContext>(certificates);
    const std::lock_guard lock(mutex_);
    current_.swap(fresh);
  }
  std::shared_ptr<const TlsContext> current() const {
    const std::lock_guard lock(mutex_);
    return current_;
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const TlsContext> current_;
};

// The bytes of one non-blocking socket. The handshake is a part of the first reads, each of which hands over all that it
// has taken from the socket: nothing lies here that epoll does not know of. One thread.
class TlsStream {
 public:
  // `fd` stays the caller's, and outlives it. Throw std::bad_alloc.
  static std::unique_ptr<TlsStream> to_client(const TlsContext& context, int fd);
  // The certificate has to be one of `host`, a name or an address.
  static std::unique_ptr<TlsStream> to_server(const TlsContext& context, int fd, const std::string& host);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // As recv() and sendmsg(): -1 with EAGAIN in errno while there is nothing, or no room; else -1 has its reason in
  // refusal(), kNone: the connection broke. `size`: at least kLeastRead. What was not written has to come again, with
  // more behind it or not.
  static constexpr std::size_t kLeastRead = 64 * 1024;
  ssize_t read(char* into, std::size_t size);
  ssize_t write(const iovec* parts, std::size_t count);
  // The client's first words: the handshake. After it read() has to be called as events come. False: as -1.
  bool begin();
  // Words of its own wait for room in the socket: read() is to be called when there is some, and not before.
  bool wants_room() const { return wants_room_; }
  bool secured() const { return secured_; }
  // What the other side, which is not secured yet, makes us hold.
  std::size_t held() const { return secured_ ? 0 : kHandshakeBytes; }
  Refusal refusal() const { return refusal_; }
  // For whoever has dialled: what is wrong with the server, or with this side for it; empty: the connection broke.
  std::string trouble() const;
  // Says that no more comes, if the socket takes it, and hears out who speaks still: what it is told is to reach it.
  void close();

 private:
  static constexpr std::size_t kHandshakeBytes = 40 * 1024;  // as measured

  TlsStream(const TlsContext& context, int fd, bool accepts);
  static int give(bio_st* bio, char* into, int size);
  static int send_on(bio_st* bio, const char* bytes, int size);
  void refuse_plain(char first);
  // What a function of OpenSSL has returned that is no success. True: it is to be called again later.
  bool is_for_later(int result);
  void judge();

  ssl_st* stream_;
  const int fd_;
  const bool accepts_;
  std::string_view incoming_{};  // while a read runs: what the socket has given
  std::string left_{};           // of that, while there is no room for words of its own
  bool begun_ = false;           // the other side has begun TLS, too
  bool secured_ = false;
  bool wants_room_ = false;
  bool ended_ = false;  // nothing more may be said on it
  Refusal refusal_ = Refusal::kNone;
  long verdict_ = 0;         // of the peer's certificate
  unsigned long alert_ = 0;  // what the other side has said; 0: nothing
};

}  // namespace rdzv
