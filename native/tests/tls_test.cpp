// TLS on a socket pair: what both ends say and hear, however it is cut, and what is wrong with whom.
#include "rdzv/tls.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#if __has_include(<openssl/ssl.h>)  // libssl-dev; the types below are then OpenSSL's own
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>
#endif

#include <cerrno>
#include <stdexcept>

#include "certificates.hpp"
#include "check.hpp"
#include "openssl.hpp"
#include "rdzv/proof.hpp"
#include "rdzv/unique_fd.hpp"

namespace rdzv::test {

namespace {

#ifdef OPENSSL_VERSION_NUMBER
#if OPENSSL_VERSION_NUMBER >= 0x30000000L
#define RDZV_SAME(name, result, parameters) \
  static_assert(std::is_same_v<decltype(&::name), decltype(openssl::Functions::name)>, #name " is declared otherwise");
RDZV_OPENSSL_FUNCTIONS(RDZV_SAME)
#undef RDZV_SAME
#endif
static_assert(openssl::kWantRead == SSL_ERROR_WANT_READ && openssl::kWantWrite == SSL_ERROR_WANT_WRITE &&
              openssl::kSystemError == SSL_ERROR_SYSCALL && openssl::kClosed == SSL_ERROR_ZERO_RETURN);
static_assert(openssl::kVerifyNone == SSL_VERIFY_NONE && openssl::kVerifyPeer == SSL_VERIFY_PEER &&
              openssl::kVerifyRequired == SSL_VERIFY_FAIL_IF_NO_PEER_CERT);
static_assert(openssl::kSetMode == SSL_CTRL_MODE && openssl::kSetSessionCache == SSL_CTRL_SET_SESS_CACHE_MODE &&
              openssl::kSetMostCertificates == SSL_CTRL_SET_MAX_CERT_LIST &&
              openssl::kSetHostName == SSL_CTRL_SET_TLSEXT_HOSTNAME && openssl::kAddToChain == SSL_CTRL_CHAIN_CERT &&
              openssl::kSetLeastVersion == SSL_CTRL_SET_MIN_PROTO_VERSION);
static_assert(openssl::kModePartialWrite == SSL_MODE_ENABLE_PARTIAL_WRITE &&
              openssl::kModeMovingBuffer == SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER &&
              openssl::kModeReleaseBuffers == SSL_MODE_RELEASE_BUFFERS && openssl::kTls13 == TLS1_3_VERSION);
static_assert(openssl::kBioFlagsRetry == BIO_FLAGS_SHOULD_RETRY && openssl::kBioFlagsRead == BIO_FLAGS_READ &&
              openssl::kBioFlagsWrite == BIO_FLAGS_WRITE && openssl::kBioFlush == BIO_CTRL_FLUSH &&
              openssl::kBioTypeSourceSink == BIO_TYPE_SOURCE_SINK);
static_assert(openssl::kAlerts == SSL_AD_REASON_OFFSET &&
              openssl::kNoCertificateCame == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE &&
              openssl::kNoPartialWildcards == X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
static_assert(openssl::kValid == X509_V_OK && openssl::kNoIssuer == X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT &&
              openssl::kNotYetValid == X509_V_ERR_CERT_NOT_YET_VALID && openssl::kExpired == X509_V_ERR_CERT_HAS_EXPIRED &&
              openssl::kSelfSigned == X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT &&
              openssl::kSelfSignedInChain == X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN &&
              openssl::kNoIssuerHere == X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY &&
              openssl::kUnverifiedLeaf == X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE &&
              openssl::kOtherHost == X509_V_ERR_HOSTNAME_MISMATCH &&
              openssl::kOtherAddress == X509_V_ERR_IP_ADDRESS_MISMATCH);
#endif

struct Line {
  explicit Line(const std::string& host = "127.0.0.1", const Certificates& of_client = {kCertificate, kCertificate, kKey})
      : ours(Certificates{kCertificate, kCertificate, kKey}), theirs(of_client) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) {
      throw std::runtime_error("socketpair");
    }
    server_fd = UniqueFd(ends[0]);
    client_fd = UniqueFd(ends[1]);
    server = TlsStream::to_client(ours, ends[0]);
    client = TlsStream::to_server(theirs, ends[1], host);
  }

  // Until both have nothing more to say. False: one of them has failed.
  bool shake_hands() {
    bool fine = client->begin();
    for (int i = 0; i < 8; ++i) {
      fine = waits(*server) && fine;
      fine = waits(*client) && fine;
    }
    return fine && server->secured() && client->secured();
  }

  static bool waits(TlsStream& stream) { return read(stream).empty() && errno == EAGAIN; }

  static std::string read(TlsStream& stream) {
    std::string into(TlsStream::kLeastRead, '\0');
    const ssize_t got = stream.read(into.data(), into.size());
    return into.substr(0, got < 0 ? 0 : static_cast<std::size_t>(got));
  }

  static ssize_t say(TlsStream& stream, const std::vector<std::string>& parts) {
    std::vector<iovec> vectors;
    for (const std::string& part : parts) {
      vectors.push_back({const_cast<char*>(part.data()), part.size()});
    }
    return stream.write(vectors.data(), vectors.size());
  }

  const TlsContext ours, theirs;
  UniqueFd server_fd, client_fd;
  std::unique_ptr<TlsStream> server, client;
};

}  // namespace

TEST(both_ends_hear_what_the_other_says) {
  load_tls("");
  for (const char* host : {"127.0.0.1", "node0"}) {
    Line line(host);
    CHECK(line.server->held() > 0);
    REQUIRE(line.shake_hands());
    CHECK_EQUAL(line.server->held(), 0u);
    CHECK_EQUAL(Line::say(*line.client, {"ab", "", "cd", std::string(20'000, 'e'), "f"}), 20'005);
    CHECK_EQUAL(Line::read(*line.server), "abcd" + std::string(20'000, 'e') + "f");
    CHECK_EQUAL(Line::say(*line.server, {"answer"}), 6);
    CHECK_EQUAL(Line::read(*line.client), "answer");
    line.client->close();
    CHECK_EQUAL(Line::read(*line.server), "");
    CHECK_EQUAL(line.server->refusal(), Refusal::kNone);
  }
}

TEST(what_finds_no_room_comes_again_and_nothing_is_lost) {
  load_tls("");
  Line line;
  REQUIRE(line.shake_hands());
  std::string all, heard;
  for (int i = 0; i < 400'000; ++i) {
    all += std::to_string(i);
  }
  std::size_t sent = 0;
  int full = 0;
  while (heard.size() < all.size()) {
    while (sent < all.size()) {
      const std::string rest = all.substr(sent);
      const ssize_t now = Line::say(*line.server, {rest.substr(0, 3), rest.substr(3)});
      if (now < 0) {
        REQUIRE(errno == EAGAIN);
        ++full;
        break;
      }
      sent += static_cast<std::size_t>(now);
    }
    const std::string more = Line::read(*line.client);
    REQUIRE(!more.empty() || errno == EAGAIN);
    heard += more;
  }
  CHECK(full > 0);
  CHECK(heard == all);
}

TEST(a_handshake_in_single_bytes) {
  load_tls("");
  Line line;
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  const UniqueFd near(ends[0]), far(ends[1]);
  const auto server = TlsStream::to_client(line.ours, far.get());
  REQUIRE(line.client->begin());
  const auto pass = [](int from, int to, const auto& after) {
    char byte = 0;
    while (recv(from, &byte, 1, 0) == 1) {
      REQUIRE(send(to, &byte, 1, 0) == 1);
      after();
    }
  };
  for (int i = 0; i < 3; ++i) {
    pass(line.server_fd.get(), near.get(), [&] { CHECK(Line::waits(*server)); });
    pass(near.get(), line.server_fd.get(), [&] { CHECK(Line::waits(*line.client)); });
  }
  CHECK(server->secured());
  CHECK(line.client->secured());
}

TEST(whose_certificate_is_not_accepted) {
  load_tls("");
  Line other_host("node1");
  CHECK(!other_host.shake_hands());
  CHECK_EQUAL(other_host.client->refusal(), Refusal::kBadCertificate);
  CHECK(other_host.client->trouble().starts_with("its certificate is for another host"));
  CHECK_EQUAL(other_host.server->refusal(), Refusal::kRefusedCertificate);
  Line none("node0", {kCertificate});
  CHECK(!none.shake_hands());
  CHECK_EQUAL(none.server->refusal(), Refusal::kNoCertificate);
  CHECK(none.client->trouble().starts_with("it needs a certificate of this node"));
  Line strange("node0", {{}, kCertificate, kKey});  // the system's authorities do not know it
  CHECK(!strange.shake_hands());
  CHECK_EQUAL(strange.client->refusal(), Refusal::kOtherAuthority);
}

TEST(what_is_no_tls_or_was_changed) {
  load_tls("");
  for (const auto& [said, told] : {std::pair{std::string("\xF7RDZV"), verdict_bytes(Verdict::kTlsNeeded)},
                                   {std::string("\xF8RDZV"), verdict_bytes(Verdict::kTlsNeeded)},
                                   {std::string("GET / HTTP/1.1"), std::string()}}) {
    Line line;
    REQUIRE(send(line.client_fd.get(), said.data(), said.size(), 0) == static_cast<ssize_t>(said.size()));
    CHECK(!Line::waits(*line.server));
    CHECK_EQUAL(line.server->refusal(), Refusal::kNoTls);
    char answer[64];
    const ssize_t got = recv(line.client_fd.get(), answer, sizeof answer, 0);
    CHECK_EQUAL(std::string(answer, got < 0 ? 0 : static_cast<std::size_t>(got)), told);
  }
  Line line;
  REQUIRE(line.shake_hands());
  REQUIRE(Line::say(*line.client, {"request"}) == 7);
  char record[256];
  const ssize_t size = recv(line.server_fd.get(), record, sizeof record, 0);
  REQUIRE(size > 0);
  record[size - 1] = static_cast<char>(record[size - 1] ^ 1);
  REQUIRE(send(line.client_fd.get(), record, static_cast<std::size_t>(size), 0) == size);
  CHECK_EQUAL(Line::read(*line.server), "");
  CHECK_EQUAL(line.server->refusal(), Refusal::kBadTls);
  CHECK(Line::say(*line.server, {"answer"}) < 0);
}

TEST(texts_that_are_no_certificates) {
  load_tls("");
  const auto refused = [](const Certificates& certificates) -> std::string {
    try {
      const TlsContext context(certificates);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  CHECK_EQUAL(refused({kCertificate, kCertificate, kKey}), "");
  CHECK_EQUAL(refused({"nothing", kCertificate, kKey}), "cacert holds no certificate");
  CHECK_EQUAL(refused({kCertificate, "nothing", kKey}), "cert holds no certificate");
  CHECK_EQUAL(refused({kCertificate, kCertificate, "nothing"}), "key holds no private key without a password");
}

}  // namespace rdzv::test
