from dflashctl.views.mask import inspection, masked_text
from dflashctl_remote.spec.data import InspectDocument, InspectReport, MaskSpan, PackingReport

SPANS = (
    MaskSpan(text="User: hi\nYou: ", num_tokens=5, is_supervised=False, is_anchor_candidate=False),
    MaskSpan(text="hello the", num_tokens=2, is_supervised=True, is_anchor_candidate=True),
    MaskSpan(text="re", num_tokens=1, is_supervised=True, is_anchor_candidate=False),
    MaskSpan(text="\nUser: bye", num_tokens=3, is_supervised=False, is_anchor_candidate=False),
)


def test_supervised_text_is_in_brackets_without_colour():
    assert masked_text(SPANS).plain == "User: hi\nYou: [hello there]\nUser: bye"


def test_text_that_ends_supervised_closes_its_bracket():
    assert masked_text(SPANS[:3]).plain.endswith("[hello there]")


def test_anchors_are_underlined_and_context_is_dim(text_of):
    text = text_of(masked_text(SPANS), has_colour=True)
    assert "\x1b[4;32mhello the" in text
    assert "\x1b[90mUser: hi" in text


def test_markup_in_the_data_is_text(text_of):
    spans = (MaskSpan(text="[bold]x[/bold] \\[", num_tokens=3, is_supervised=False, is_anchor_candidate=False),)
    assert text_of(masked_text(spans)).rstrip() == "[bold]x[/bold] \\["


def test_inspection_gives_totals_packing_and_documents(text_of, dataset_info):
    document = InspectDocument(
        index=3, id="d3", category="code", num_tokens=11, num_supervised_tokens=3, num_anchor_candidates=2, spans=SPANS
    )
    report = InspectReport(
        dataset="/d",
        info=dataset_info,
        supervised_share=0.499,
        length_p50_tokens=120,
        length_p90_tokens=157,
        length_max_tokens=184,
        categories={"code": 200, "": 100},
        packing=PackingReport(tokens_per_batch=2048, num_rows=19, fill_share=0.944, padded_waste_share=0.028),
        documents=(document,),
    )
    text = text_of(inspection(report))
    for said in ("49.9 %", "code 200, no category 100", "19 rows of 2,048: 94.4 % filled", "document 3 (d3, code)"):
        assert said in text
