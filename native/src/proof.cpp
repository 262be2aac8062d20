#include "rdzv/proof.hpp"

#include <algorithm>
#include <cstring>

#include "rdzv/framing.hpp"
#include "rdzv/payload.hpp"

namespace rdzv {

namespace {

constexpr std::string_view kWhat{"rdzv-plugins proof of a token"};
// Opcode, magic, version; purpose, nonce, size of the run's name.
constexpr std::size_t kFixed = 1 + 4 + 4, kHead = kFixed + 1 + kDigestSize + 2;

std::string beginning() {
  std::string bytes(1, static_cast<char>(kProofOpcode));
  bytes += kFramingMagic;
  add_number(bytes, kProofVersion);
  return bytes;
}

}  // namespace

std::string Introduction::bytes() const {
  std::string said = beginning();
  add_number(said, static_cast<std::uint8_t>(purpose));
  said += view(nonce);
  add_number(said, static_cast<std::uint16_t>(run.size()));
  return said + run;
}

Introduced read_introduction(std::string_view bytes, Introduction& introduction) {
  const std::string expected = beginning();
  const std::size_t magic = kFixed - sizeof kProofVersion;
  if (bytes.substr(0, magic) != std::string_view(expected).substr(0, std::min(magic, bytes.size()))) {
    return {0, Introduced::Error::kNotOne};
  }
  if (bytes.size() < kFixed) {
    return {};
  }
  if (bytes.substr(0, kFixed) != expected) {
    return {0, Introduced::Error::kOtherVersion};
  }
  if (bytes.size() < kHead) {
    return {};
  }
  const auto purpose = static_cast<std::uint8_t>(bytes[kFixed]);
  std::uint16_t size = 0;
  std::memcpy(&size, bytes.data() + kHead - sizeof size, sizeof size);
  if (!is_purpose(purpose) || size > kMostRunName) {
    return {0, Introduced::Error::kNotOne};
  }
  if (bytes.size() < kHead + size) {
    return {};
  }
  introduction.purpose = static_cast<Purpose>(purpose);
  std::memcpy(introduction.nonce.data(), bytes.data() + kFixed + 1, kDigestSize);
  introduction.run = bytes.substr(kHead, size);
  return {kHead + size, Introduced::Error::kNone};
}

std::optional<Digest> proof(std::string_view key, Side side, const Introduction& introduction, const Digest& server_nonce) {
  std::string message(kWhat);
  add_number(message, kProofVersion);
  add_number(message, static_cast<std::uint8_t>(side));
  add_number(message, static_cast<std::uint8_t>(introduction.purpose));
  message += view(introduction.nonce);
  message += view(server_nonce);
  add_text(message, introduction.run);
  return hmac_sha256(key, message);
}

std::optional<std::string> proofs(const std::vector<std::string>& keys, const Introduction& introduction,
                                  const Digest& server_nonce) {
  const std::size_t count = std::min(keys.size(), kMostProofs);
  std::string bytes(1, static_cast<char>(count));
  for (std::size_t i = 0; i < count; ++i) {
    const auto mine = proof(keys[i], Side::kClient, introduction, server_nonce);
    if (!mine) {
      return std::nullopt;
    }
    bytes += view(*mine);
  }
  return bytes;
}

std::optional<Verdict> verdict(std::string_view bytes) {
  std::uint32_t number = 0;
  if (!bytes.starts_with(kProofMagic)) {
    return std::nullopt;
  }
  std::memcpy(&number, bytes.data() + kProofMagic.size(), sizeof number);
  return static_cast<Verdict>(number);
}

std::string verdict_bytes(Verdict verdict) {
  std::string bytes(kProofMagic);
  add_number(bytes, static_cast<std::uint32_t>(verdict));
  return bytes;
}

}  // namespace rdzv
