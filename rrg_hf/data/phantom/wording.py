"""The words of the phantom's reports. `{...}` are filled from the fact; `[a]` is an article, dropped in the plural."""

from __future__ import annotations

from typing import NamedTuple

# Where a sentence stands in a report that goes through the chest in order.
_DEVICES, _HEART, _LUNGS, _PLEURA, _BONES = 0, 1, 2, 3, 4
REGION: dict[str, int] = {
    "Support Devices": _DEVICES,
    "Cardiomegaly": _HEART,
    "Enlarged Cardiomediastinum": _HEART,
    "Lung Opacity": _LUNGS,
    "Lung Lesion": _LUNGS,
    "Edema": _LUNGS,
    "Consolidation": _LUNGS,
    "Pneumonia": _LUNGS,
    "Atelectasis": _LUNGS,
    "Pneumothorax": _PLEURA,
    "Pleural Effusion": _PLEURA,
    "Pleural Other": _PLEURA,
    "Fracture": _BONES,
}

STATEMENTS: dict[str, tuple[str, ...]] = {
    "Cardiomegaly": (
        "There is {change} {size} cardiomegaly.",
        "The heart is {how} enlarged.",
        "The cardiac silhouette is {how} enlarged.",
        "{change} {size} enlargement of the cardiac silhouette.",
    ),
    "Enlarged Cardiomediastinum": (
        "The mediastinum is {how} widened.",
        "There is {change} {size} widening of the mediastinum.",
        "{change} {size} mediastinal widening is seen.",
    ),
    "Lung Opacity": (
        "There is [a] {change} {size} hazy opacity in {where}.",
        "{change} {size} hazy opacity is seen in {where}.",
        "[a] {change} {size} ill-defined opacity projects over {where}.",
    ),
    "Lung Lesion/nodule": (
        "There is a {change} {size} nodule in {where}.",
        "A {change} {size} round nodule is seen in {where}.",
        "A {change} {size} pulmonary nodule projects over {where}.",
    ),
    "Lung Lesion/mass": (
        "There is a {change} {size} mass in {where}.",
        "A {change} {size} round mass is seen in {where}.",
        "A {change} {size} lung mass projects over {where}.",
    ),
    "Edema": (
        "There is {change} {size} pulmonary edema.",
        "{change} {size} bilateral perihilar edema is present.",
        "Findings are consistent with {change} {size} pulmonary edema.",
    ),
    "Consolidation": (
        "There is {change} {size} dense consolidation in {where}.",
        "{change} {size} consolidation with air bronchograms is seen in {where}.",
        "{change} {size} area of consolidation in {where}.",
    ),
    "Pneumonia": (
        "There is {change} {size} multifocal pneumonia in {where}.",
        "{change} {size} patchy pneumonia is present in {where}.",
        "Findings are consistent with {change} {size} pneumonia in {where}.",
    ),
    "Atelectasis": (
        "There is {change} {size} linear atelectasis at {base} with elevation of {dome}.",
        "{change} {size} {side} basilar atelectasis is present.",
        "{change} {size} bands of atelectasis are seen at {base}.",
    ),
    "Pneumothorax": (
        "There is a {change} {size} {side} pneumothorax.",
        "A {change} {size} {side} apical pneumothorax is present.",
        "{change} {size} {side} pneumothorax is seen with a visible pleural line.",
    ),
    "Pleural Effusion": (
        "There {is} [a] {change} {size} {side} pleural effusion{s}.",
        "{change} {size} {side} pleural effusion{s} {is} present.",
        "[a] {change} {size} {side} effusion{s} {is} seen.",
    ),
    "Pleural Other/thickening": (
        "There is {change} {size} {side} pleural thickening.",
        "{change} {size} pleural thickening is seen along {wall}.",
    ),
    "Pleural Other/plaque": (
        "There is {change} {size} calcified pleural plaque along {wall}.",
        "{change} {size} {side} calcified pleural plaques are present.",
    ),
    "Fracture/ribs": (
        "There are {change} displaced {side} rib fractures.",
        "{change} displaced fractures of several {side} ribs are seen.",
        "{change} {side} rib fractures are present.",
    ),
    "Fracture/clavicle": (
        "There is a {change} displaced {side} clavicle fracture.",
        "A {change} displaced fracture of the {side} clavicle is seen.",
    ),
    "Support Devices/pacemaker": (
        "A left chest wall pacemaker is in place.",
        "There is a left pacemaker with its lead in the right ventricle.",
    ),
    "Support Devices/endotracheal tube": (
        "An endotracheal tube is in place.",
        "The endotracheal tube ends above the carina.",
    ),
    "Support Devices/central line": (
        "A right central venous catheter is in place.",
        "A right internal jugular catheter ends in the superior vena cava.",
    ),
    "Support Devices/sternal wires": (
        "Median sternotomy wires are in place.",
        "There are midline sternal wires.",
    ),
    "Support Devices/enteric tube": (
        "An enteric tube courses below the diaphragm.",
        "A nasogastric tube ends in the stomach.",
    ),
}

POSSIBLE: dict[str, tuple[str, ...]] = {
    "Cardiomegaly": ("There is possible {size} cardiomegaly.", "The heart may be {how} enlarged."),
    "Enlarged Cardiomediastinum": (
        "There is possible {size} mediastinal widening.",
        "The mediastinum may be {how} widened.",
    ),
    "Lung Opacity": (
        "There is [a] possible {size} opacity in {where}.",
        "{size} questionable hazy opacity is seen in {where}.",
    ),
    "Lung Lesion/nodule": (
        "There is a possible {size} nodule in {where}.",
        "A faint round focus in {where} may represent a {size} nodule.",
    ),
    "Lung Lesion/mass": ("There is a possible {size} mass in {where}.",),
    "Edema": (
        "There is possible {size} pulmonary edema.",
        "Subtle perihilar change may represent {size} pulmonary edema.",
    ),
    "Consolidation": (
        "There is possible {size} consolidation in {where}.",
        "Subtle change in {where} may represent {size} consolidation.",
    ),
    "Pneumonia": (
        "There is possible {size} pneumonia in {where}.",
        "Subtle patchy change in {where} may represent {size} pneumonia.",
    ),
    "Atelectasis": (
        "There is possible {size} {side} basilar atelectasis.",
        "Subtle bands at {base} may represent {size} atelectasis.",
    ),
    "Pneumothorax": (
        "There is a possible {size} {side} pneumothorax.",
        "A faint curved edge at the {side} apex may represent a {size} pneumothorax.",
    ),
    "Pleural Effusion": (
        "There {is} [a] possible {size} {side} pleural effusion{s}.",
        "{size} {side} pleural effusion{s} cannot be excluded.",
    ),
    "Pleural Other/thickening": ("There is possible {size} {side} pleural thickening.",),
    "Pleural Other/plaque": ("There is possible {size} calcified pleural plaque along {wall}.",),
    "Fracture/ribs": ("There are possible {side} rib fractures.",),
    "Fracture/clavicle": ("There is a possible {side} clavicle fracture.",),
}

# For the impression.
SHORT: dict[str, str] = {
    "Cardiomegaly": "{change} {size} cardiomegaly",
    "Enlarged Cardiomediastinum": "{change} {size} mediastinal widening",
    "Lung Opacity": "{change} {size} opacity in {where}",
    "Lung Lesion/nodule": "{change} {size} nodule in {where}",
    "Lung Lesion/mass": "{change} {size} mass in {where}",
    "Edema": "{change} {size} pulmonary edema",
    "Consolidation": "{change} {size} consolidation in {where}",
    "Pneumonia": "{change} {size} pneumonia in {where}",
    "Atelectasis": "{change} {size} {side} basilar atelectasis",
    "Pneumothorax": "{change} {size} {side} pneumothorax",
    "Pleural Effusion": "{change} {size} {side} pleural effusion{s}",
    "Pleural Other/thickening": "{change} {size} {side} pleural thickening",
    "Pleural Other/plaque": "{change} {size} {side} calcified pleural plaques",
    "Fracture/ribs": "{change} {side} rib fractures",
    "Fracture/clavicle": "{change} {side} clavicle fracture",
    "Support Devices/pacemaker": "Left pacemaker in place",
    "Support Devices/endotracheal tube": "Endotracheal tube in place",
    "Support Devices/central line": "Right central venous catheter in place",
    "Support Devices/sternal wires": "Median sternotomy wires",
    "Support Devices/enteric tube": "Enteric tube in place",
}
IMPRESSIONS: tuple[str, ...] = (
    "No acute cardiopulmonary abnormality.",
    "No acute cardiopulmonary process.",
    "Normal chest radiograph.",
    "No acute findings.",
)


class Denial(NamedTuple):
    """A sentence that says what is not there. It is used only when all of `denies` and `needs_absent` are absent."""

    weight: float  # how often it is chosen, relative to the others
    region: int
    denies: tuple[str, ...]  # observations that become negative
    phrasings: tuple[str, ...]
    needs_absent: tuple[str, ...] = ()


_IN_LUNGS = ("Lung Opacity", "Lung Lesion", "Edema", "Consolidation", "Pneumonia", "Atelectasis")

DENIALS: tuple[Denial, ...] = (
    Denial(
        6.0,
        _HEART,
        ("Cardiomegaly",),
        (
            "The heart size is normal.",
            "Heart size is within normal limits.",
            "The cardiac silhouette is normal in size.",
            "The heart is not enlarged.",
            "There is no cardiomegaly.",
        ),
    ),
    Denial(
        3.0,
        _HEART,
        ("Enlarged Cardiomediastinum",),
        (
            "The mediastinal contours are normal.",
            "The mediastinum is not widened.",
            "There is no widening of the mediastinum.",
        ),
    ),
    Denial(
        6.0,
        _PLEURA,
        ("Pleural Effusion", "Pneumothorax"),
        (
            "There is no pleural effusion or pneumothorax.",
            "No pleural effusion or pneumothorax is seen.",
            "No pneumothorax or pleural effusion.",
        ),
    ),
    Denial(
        2.5,
        _PLEURA,
        ("Pneumothorax",),
        ("There is no pneumothorax.", "No pneumothorax is seen.", "No evidence of pneumothorax."),
    ),
    Denial(
        2.5,
        _PLEURA,
        ("Pleural Effusion",),
        ("There is no pleural effusion.", "No pleural effusion is seen.", "No evidence of pleural effusion."),
    ),
    Denial(
        3.0,
        _LUNGS,
        ("Consolidation", "Pleural Effusion", "Pneumothorax"),
        (
            "There is no focal consolidation, pleural effusion, or pneumothorax.",
            "No focal consolidation, pleural effusion or pneumothorax is seen.",
        ),
    ),
    Denial(
        3.0,
        _LUNGS,
        ("Consolidation",),
        ("There is no focal consolidation.", "No focal consolidation is seen.", "No evidence of consolidation."),
    ),
    Denial(2.5, _LUNGS, ("Lung Opacity",), ("There is no focal opacity.", "No focal lung opacity is seen.")),
    # names no observation, so it labels none (as in chexpert-labeler)
    Denial(3.5, _LUNGS, (), ("The lungs are clear.", "Both lungs are clear."), _IN_LUNGS),
    Denial(2.0, _LUNGS, ("Edema",), ("There is no pulmonary edema.", "No evidence of pulmonary edema.")),
    Denial(1.5, _LUNGS, ("Pneumonia",), ("There is no evidence of pneumonia.", "No pneumonia is seen.")),
    Denial(1.0, _LUNGS, ("Pneumonia", "Edema"), ("There is no evidence of pneumonia or pulmonary edema.",)),
    Denial(0.8, _LUNGS, ("Atelectasis",), ("There is no atelectasis.", "No atelectasis is seen.")),
    Denial(1.2, _LUNGS, ("Lung Lesion",), ("No pulmonary nodule or mass is seen.", "There is no suspicious nodule.")),
    Denial(0.8, _PLEURA, ("Pleural Other",), ("There is no pleural thickening.", "No pleural thickening is seen.")),
    Denial(0.5, _DEVICES, ("Support Devices",), ("No support devices are seen.",)),
    Denial(2.0, _BONES, ("Fracture",), ("No acute fracture is seen.", "There is no displaced rib fracture.")),
)
# True of every phantom, and about none of the 14 observations.
NEUTRAL: tuple[tuple[int, str], ...] = (
    (_HEART, "The trachea is midline."),
    (_HEART, "The aortic arch is normal."),
    (_PLEURA, "The soft tissues are unremarkable."),
    (_BONES, "The spine is unremarkable."),
    (_BONES, "The upper abdomen is unremarkable."),
)

INDICATIONS: dict[str, tuple[str, ...]] = {
    "healthy": (
        "Routine examination.",
        "Preoperative evaluation.",
        "Positive tuberculosis test.",
        "Employment screening.",
    ),
    "heart failure": ("Shortness of breath.", "Dyspnea and leg swelling.", "Orthopnea.", "Weight gain and dyspnea."),
    "infection": ("Fever and cough.", "Productive cough.", "Cough, chills and elevated white count.", "Sepsis."),
    "trauma": ("Trauma.", "Fall with chest pain.", "Motor vehicle collision.", "Chest wall pain after a fall."),
    "after surgery": (
        "Postoperative day one.",
        "After cardiac surgery.",
        "Status post intubation.",
        "Line placement.",
    ),
    "malignancy": ("Weight loss.", "Hemoptysis.", "History of cancer.", "Smoker with weight loss."),
    "dust exposure": (
        "Asbestos exposure.",
        "Former shipyard worker.",
        "Occupational dust exposure.",
        "Retired miner.",
    ),
}
