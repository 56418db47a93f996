"""Operations, grouped by what they change."""
