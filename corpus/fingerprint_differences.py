"""The fingerprints of two sides, stored vectors and those that are served now: the parts that
differ, in words."""

from dataclasses import dataclass

from addnorm.service.engine.fingerprint import ANY, Recorded, moved, same_bits


@dataclass(frozen=True)
class Difference:
    """A part of a fingerprint that differs. None: that side has no such part."""

    part: str
    stored: str | None
    served: str | None

    def __str__(self) -> str:
        stored, served = self.stored, self.served
        are_classes = ANY not in f"{stored} {served}"
        if self.part == "processor" and stored and served and are_classes:
            # long lists, nearly the same
            a, b = stored.split(), served.split()
            stored = " ".join(word for word in a if word not in b) or "without"
            served = " ".join(word for word in b if word not in a) or "without"
        return f"{self.part} (stored {stored or 'none'}, now {served or 'none'})"


@dataclass(frozen=True)
class Fingerprints:
    """The fingerprints of the stored vectors and of the server."""

    stored: Recorded | None
    served: Recorded | None
    other_precision: str | None = None  # that the model has too, if the stored one is of it

    @property
    def are_equal(self) -> bool | None:
        """The fingerprints are equal, or what they promise is. None if one is not known."""
        if self.stored is None or self.served is None:
            return None
        is_known = self.stored.parts and self.served.parts
        return self.stored.digest == self.served.digest or bool(is_known and not self._moved[0])

    @property
    def has_equal_bits(self) -> bool:
        """The bits of known answers are equal, of any bundle. False if it is not known."""
        return bool(
            self.stored and self.served and same_bits(self.stored.record, self.served.record)
        )

    @property
    def _moved(self) -> tuple[list[str], list[str]]:
        assert self.stored
        assert self.served
        return moved(self.stored.record, self.served.record)

    @property
    def differences(self) -> list[Difference]:
        """The parts that differ, if both sides have parts."""
        if not (self.stored and self.served and self.stored.parts and self.served.parts):
            return []
        stored, served = self.stored.parts, self.served.parts
        differ = [part for parts in self._moved for part in parts]
        # these bits are of the bundle's known answers, which each bundle and precision has its own
        of_answers = all(ANY in parts.get("processor", "") for parts in (stored, served))
        if of_answers and {"manifest_sha256", "precision"} & {*differ}:
            differ = [part for part in differ if part != "processor"]
        return [Difference(part, stored.get(part), served.get(part)) for part in differ]

    def __str__(self) -> str:
        if self.stored is None:
            return "no fingerprint is stored with the vectors, so the cause cannot be determined"
        if self.served is None:
            return "the server does not report a fingerprint"
        if self.are_equal:
            parts = ", ".join(map(str, self.differences))
            return f"equal bits of the known answers, with another {parts}" if parts else "equal"
        if differences := self.differences:
            causes = "differs in " + ", ".join(map(str, differences))
            precision = self.other_precision
            advice = (
                f"; the stored vectors were computed in {precision}, which this server"
                f" offers: write @{precision} behind the model"
            )
            return causes + (advice if precision else "")
        digests = f"stored {self.stored.digest}, now {self.served.digest}"
        unknown = "stored" if self.stored.parts is None else "reported by the server"
        return (
            f"differs ({digests}); its parts were not {unknown}, so the cause cannot be determined"
        )
